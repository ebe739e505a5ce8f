"""A logging set-up of a user's, as many projects have it, sees the lines of the beat."""

from __future__ import annotations

import logging
import pkgutil
import re
from importlib import import_module
from pathlib import Path

import redbeat_lite
from tests.support.processes import celery
from tests.support.server import Server
from tests.support.waiting import eventually

#: Names ``celery`` alone, and disables all loggers that it does not know, as dictConfig does by default.
PROJ = """
import logging.config, os
from celery import Celery, signals

app = Celery("logproj", broker=os.environ["PROJ_URL"])
app.conf.result_expires = None
app.conf.beat_schedule = {"bad": {"task": "", "schedule": 5.0}}

@signals.setup_logging.connect
def set_up(**_):
    handler = {"class": "logging.FileHandler", "filename": os.environ["PROJ_LOG"], "formatter": "line"}
    logging.config.dictConfig({
        "version": 1,
        "formatters": {"line": {"format": "%(name)s %(levelname)s %(message)s"}},
        "handlers": {"file": handler},
        "loggers": {"celery": {"handlers": ["file"], "level": "INFO", "propagate": False}},
    })
"""


def test_a_handler_of_celerys_logger_alone_sees_each_line_of_the_beat_once(server: Server, tmp_path: Path) -> None:
    (tmp_path / "logproj.py").write_text(PROJ)
    log = tmp_path / "log"
    words = ("--workdir", str(tmp_path), "beat", "-S", "redbeat_lite.Scheduler")
    with celery("logproj", *words, PROJ_URL=server.url, PROJ_LOG=log):
        eventually(lambda: log.exists() and "beat: leading" in log.read_text(), what="the leader's line")
    lines = [line for line in log.read_text().splitlines() if "config entry 'bad' is refused" in line]
    assert len(lines) == 1
    assert lines[0].startswith("celery.redbeat_lite.")


def test_all_loggers_of_beat_and_workers_are_below_celerys() -> None:
    for module in pkgutil.walk_packages(redbeat_lite.__path__, "redbeat_lite."):
        if not re.search(r"__main__|django|demo", module.name):  # those want more than to be imported
            import_module(module.name)
    loggers = {
        name: found for name, found in logging.root.manager.loggerDict.items() if name.startswith("redbeat_lite.")
    }
    ours = {name for name, found in loggers.items() if isinstance(found, logging.Logger)}
    # The one of the API warns at a Python prompt, where nobody has set up logging.
    assert ours <= {"redbeat_lite.api.writer"}
