"""README, "Edits are safe", also with two writers, lost replies and restarts."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable

from celery import Celery

from redbeat_lite import EntryChanged, Schedules, every
from tests.promises.conftest import TICK, Stage, plan_a_bad_entry
from tests.support.proxy import Proxy
from tests.support.stopwatch import Stopwatch
from tests.support.waiting import eventually


class TestEdits:
    def test_a_change_whose_reply_was_lost_is_made_once(
        self, stage: Stage, proxy: Proxy, make_app: Callable[..., Celery]
    ) -> None:
        """Each call carries an id, and a call that the server has seen gets the same reply."""
        schedules = Schedules(make_app(redbeat_lite_url=proxy.url))
        proxy.lose_reply_to = re.compile(rb"first")
        entry = schedules.add("entry", "proj.add", every(60), description="first")
        proxy.lose_reply_to = re.compile(rb"second")
        schedules.update("entry", description="second", if_version=entry.version)
        proxy.lose_reply_to = re.compile(rb"third")
        schedules.remove("entry", note="third")
        assert proxy.lost == 3
        actions = [change.action for change in stage.schedules.changes("entry")]
        assert actions == ["removed", "edited", "added"]

    def test_of_two_writers_of_one_version_one_wins(self, stage: Stage) -> None:
        """``if_version`` loses no update."""
        stage.schedules.add("counter", "proj.add", every(3600), kwargs={"x": 0})

        def count() -> None:
            left = 25
            while left:
                entry = stage.schedules["counter"]
                kwargs = {"x": entry.kwargs["x"] + 1}
                try:
                    stage.schedules.update("counter", kwargs=kwargs, if_version=entry.version)
                except EntryChanged:
                    continue
                left -= 1

        writers = [threading.Thread(target=count) for _ in range(4)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        assert stage.schedules["counter"].kwargs == {"x": 100}

    def test_every_message_after_an_edit_is_made_by_it(self, stage: Stage) -> None:
        """An edited entry never fires by its old rule, nor with its old arguments."""
        stage.schedules.add("stream", "proj.add", every(TICK), kwargs={"x": 1})
        stage.beat()
        stage.waits_for("stream", 2)
        stage.schedules.update("stream", kwargs={"x": 2})
        sent = len(stage.messages("stream"))
        messages = stage.waits_for("stream", sent + 3)
        assert [message.kwargs for message in messages[sent:]] == [{"x": 2}] * (len(messages) - sent)

    def test_what_was_mended_meanwhile_is_not_set_aside(self, stage: Stage) -> None:
        """One bad entry is set aside with its error; one that was mended is not bad any more."""
        plan_a_bad_entry(stage)
        stage.schedules.add("bad", "proj.add", every(3600), replace=True)
        stage.gate.open()
        stage.waits_for("gated")
        assert not stage.schedules.quarantined()
        assert stage.schedules["bad"].status == "waiting"

    def test_an_edit_forgets_failed_publishes(self, stage: Stage) -> None:
        """If one entry is at fault, it is retried after 1, 2, 4 … 60 seconds, and at once after an edit."""
        stage.client.set("odd", "not a list")
        beat = stage.beat()
        stage.schedules.add("entry", "proj.add", every(0.05), options={"queue": "odd"})

        def seconds_to_retry() -> float:
            due_ms = stage.client.zscore("{redbeat-lite}:due", "entry") or 0
            return due_ms / 1000 - time.time()

        # After the third failure, the entry is retried in four seconds.
        eventually(lambda: seconds_to_retry() > 3)
        assert stage.schedules["entry"].last_error
        with Stopwatch(beat, stage.server) as watch:
            edited = stage.schedules.update("entry", options={})
            stage.waits_for("entry")
        watch.at_most(0.5)
        assert edited.last_error is None

    def test_a_restart_changes_no_config_entry(self, stage: Stage) -> None:
        """A config entry whose schedule did not change keeps its next run."""
        schedule = {"hourly": {"task": "proj.add", "schedule": 3600.0}}
        for _ in range(2):
            beat = stage.beat(beat_schedule=schedule)
            beat.says("beat: leading")
            beat.stop()
        assert stage.schedules["hourly"].version == 1
        assert [change.action for change in stage.schedules.changes("hourly")] == ["added"]
