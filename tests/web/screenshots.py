"""Takes the pictures of README and web.md: ``make screenshots``. The schedule is one that a shop may have."""

from __future__ import annotations

import base64
import json
import os
import random
import sys
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from celery import Celery
from playwright.sync_api import sync_playwright

from redbeat_lite import Expect, Schedules, cron, every, lock, manual
from redbeat_lite._base.actors import acting_as
from redbeat_lite._base.times import to_ms
from redbeat_lite.demo.run import embedded_server
from redbeat_lite.entries.run import Outcome
from redbeat_lite.web import RIGHTS, Access, asgi
from redbeat_lite.web.site import ROUTES
from tests.support.incidents import incident
from tests.support.processes import ROOT, celery
from tests.support.run_records import Worker
from tests.support.run_rows import RunRows
from tests.web import hand_over
from tests.web.test_browser import CHROMIUM, serving
from tests.web.test_pipelines import Runs

#: Where the pictures go, and how many bytes each may have.
WHERE, MOST = ROOT / "docs" / "img", 150_000

#: Picture, path, pixels of its height, and whether it is dark. A page that is not there has none.
PICTURES = (
    ("now", "", 900, False),
    ("entries", "entries", 740, False),
    ("entry", "entry?name=nightly-report", 1480, True),
    ("pipeline", "pipeline?id=catalog-23", 900, False),
    ("runs", "runs", 600, True),
)
BERLIN, MINUTE, HOUR, DAY = ZoneInfo("Europe/Berlin"), 60, 3600, 86_400

#: Name, task, schedule, seconds from run to run and from midnight, how a run ends if not well and how often, seconds
#: that it takes, tags.
ENTRIES: tuple[tuple[str, str, Any, int, int, Outcome, float, float, tuple[str, ...]], ...] = (
    ("nightly-report", "reports.build", cron("30 2 * * *"), DAY, 9000, "failed", 0.1, 41, ("finance",)),
    ("backup", "ops.backup", cron("0 */4 * * *"), 4 * HOUR, 0, "failed", 0.3, 320, ("ops",)),
    ("rates", "finance.fetch_rates", every(900), 900, 60, "expired", 0.05, 1.2, ("finance",)),
    ("stock", "shop.count_stock", every(60), MINUTE, 7, "lost", 0.02, 0.4, ("shop",)),
    ("sessions", "shop.clean_sessions", cron("15 * * * *"), HOUR, 900, "skipped", 0.1, 6, ("shop",)),
    ("crm", "sales.sync", every(300), 300, 130, "failed", 0.1, 12, ("sales",)),
    ("invoices", "billing.send", cron("0 6 * * mon-fri"), DAY, 6 * HOUR, "failed", 0, 95, ("finance", "billing")),
    ("newsletter", "shop.send_newsletter", cron("0 9 * * tue"), 7 * DAY, 9 * HOUR, "failed", 0, 340, ("shop",)),
    ("payments", "billing.retry", every(600), 600, 200, "left out", 0.1, 3.5, ("billing",)),
    ("thumbnails", "shop.make_thumbnails", cron("*/20 * * * *"), 1200, 0, "failed", 0.05, 50, ("shop",)),
    ("reindex", "search.reindex", manual(), 9 * DAY, 0, "failed", 0, 610, ("search",)),
)


def fill(schedules: Schedules, client: Any) -> None:
    """Store the entries, and what workers would have written of their last 20 runs."""
    chance, rows, told = random.Random(7), RunRows(client, schedules), []
    now = datetime.now(UTC)
    midnight = datetime.now(BERLIN).replace(hour=0, minute=0, second=0, microsecond=0)
    for name, task, schedule, period, offset, bad, share, seconds, tags in ENTRIES:
        expect = Expect(failures=1) if name == "backup" else None
        schedules.add(name, task, schedule, tags=tags, expect=expect, kwargs={"full": True})
        last = now - (now - midnight - timedelta(seconds=offset)) % timedelta(seconds=period)
        times = [last - timedelta(seconds=period * back) for back in range(20, -1, -1)]
        for at, id_ in zip(times, rows.sent(name, *times), strict=True):
            outcome: Outcome = bad if chance.random() < share or (name, at) == ("backup", last) else "succeeded"
            told.append((at, name, id_, outcome, round(1000 * seconds * chance.uniform(0.8, 1.3))))
    for tenant in range(90):
        night = cron(f"{chance.randrange(60)} {chance.randrange(1, 6)} * * *")
        schedules.add(f"usage:{tenant}", "billing.count_usage", night, tags=["billing", f"tenant:{tenant}"])
    for at, name, id_, outcome, took in sorted(told):
        error = "ConnectionError: bucket eu-1 does not answer" if outcome == "failed" else ""
        worker = f"celery@w{took % 3 + 1}"
        ran = {"begin": 40, "duration": took} if outcome in ("succeeded", "failed") else {}
        line = rows.line(name, at, outcome, id_, worker=worker, error=error, **ran)
        rows.row(name, at, outcome, id_, feed=line, **ran)
    error = "failed: ConnectionError: bucket eu-1 does not answer"
    case = incident("failed", "backup", to_ms(now), error, nominal=to_ms(now))
    client.hset("{redbeat-lite}:runs:incidents", case.field, case.encode())
    schedules.pause("newsletter", "until the new templates are there")


def trouble(app: Celery, schedules: Schedules, client: Any, stack: ExitStack) -> None:
    """What somebody has to see to: a freeze, backfills, runs of pipelines, locks, quarantine."""
    schedules.select(tag="shop").pause("the shop moves to another server", seconds=5400)
    schedules.select("usage:1*").pause("tenants of the old price list", seconds=2 * DAY)
    now = datetime.now(UTC)
    backfills = [
        schedules.backfills.start(name, now - timedelta(days=days), now, note=note)
        for name, days, note in (("rates", 2, "the bank had the wrong rates"), ("invoices", 14, "the outage"))
    ]
    schedules.backfills.cancel(backfills[1].id)
    runs = Runs(app)
    steps = (("extract", 4), ("clean", 3), ("index", 2), ("prices", 2), ("stock", 2), ("publish", 1))
    for run_id, ended, last in (("catalog-22", 5, "SUCCEEDED"), ("catalog-23", 3, "FAILED"), ("catalog-24", 0, "")):
        run = runs.start(*steps, run_id=run_id)
        for number in range(ended):
            runs.end(run, number)
        if last:
            runs.end(run, ended, last, "TimeoutError: the index does not answer" if last == "FAILED" else "{}")
        else:
            runs.begin(run, ended, renew_ms=3_600_000)
    for key in ("reindex", "export:tenant:12"):
        stack.enter_context(lock(app, key, lease=600))
    client.zadd("{redbeat-lite}:once:wait:reindex", {f"4f0c1d2e-7c1{number}-4a55": number for number in range(3)})
    definition = '{"v": 3, "task": "sales.export", "schedule": {"every": 0}, "kwargs": {"customer": 7}}'
    record = {"error": "schedule.every: expected a length of time above 0, got 0", "definition": definition}
    client.hset("{redbeat-lite}:quarantine", "export:7", json.dumps({**record, "at": to_ms(now) - 7_200_000}))


def main() -> None:
    with ExitStack() as stack:
        url = stack.enter_context(embedded_server())
        app = Celery("shop", broker=url, set_as_current=False)
        app.conf.timezone = "Europe/Berlin"
        schedules = Schedules(app)
        client = stack.enter_context(app.connection_for_read().channel().client)
        Worker(client).reports()
        with acting_as("grace"):
            fill(schedules, client)
            trouble(app, schedules, client, stack)
        conf = '{"timezone": "Europe/Berlin", "result_expires": null}'
        for _ in range(2):
            beat = celery(
                "tests.acceptance.proj",
                "beat",
                "-S",
                "redbeat_lite.Scheduler",
                "-l",
                "INFO",
                PROJ_URL=url,
                PROJ_CONF=conf,
            )
            stack.callback(beat.destroy)
            beat.says("leading|standing by")
        origin = stack.enter_context(serving(asgi(app, access=lambda request: Access("ada", RIGHTS))))
        chromium = stack.enter_context(sync_playwright()).chromium
        browser = chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        stack.callback(browser.close)
        for name, path, height, dark in PICTURES:
            if ("GET", f"/{path.partition('?')[0]}") not in ROUTES:
                continue
            viewport = {"width": 1280, "height": height}
            tab = browser.new_page(color_scheme="dark" if dark else "light", viewport=viewport, reduced_motion="reduce")
            tab.goto(f"{origin}/{path}")
            tab.wait_for_selector("time[data-away], svg", state="attached")
            take(browser, tab.screenshot(), WHERE / f"{name}.webp")
            tab.close()
        take_hand_over(browser, stack.enter_context(embedded_server()))


def take_hand_over(browser: Any, url: str) -> None:
    """Take the picture of two beats on a server of their own."""
    tab = browser.new_page(viewport={"width": 1280, "height": 300})
    tab.set_content(hand_over.page(*hand_over.run(url)))
    take(browser, tab.screenshot(full_page=True), WHERE / "hand-over.webp")
    tab.close()


def take(browser: Any, picture: bytes, path: Path) -> None:
    """Write a picture as WebP, which the browser itself makes of it."""
    tab = browser.new_page()
    found = tab.evaluate(
        """async (png) => {
            const image = await createImageBitmap(await (await fetch(png)).blob());
            const canvas = Object.assign(document.createElement("canvas"), {width: image.width, height: image.height});
            canvas.getContext("2d").drawImage(image, 0, 0);
            return canvas.toDataURL("image/webp", 0.8);
        }""",
        "data:image/png;base64," + base64.b64encode(picture).decode(),
    )
    tab.close()
    small = base64.b64decode(found.partition(",")[2])
    assert len(small) < MOST, f"{path} has {len(small)} bytes"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(small)
    print(f"{os.path.relpath(path)}: {len(small)} bytes")


if __name__ == "__main__":
    sys.exit("there is no Chromium; CONTRIBUTING.md says how to get one" if CHROMIUM is None else main())
