"""What the leader does beside its loop: each in a thread that shares nothing with it."""

from __future__ import annotations

from celery import Celery

from ..pipeline.sweeper import sweeper
from ..runs.keys import RunKeys
from ..settings import Settings
from ..threads import Ticker
from .dispatch.deadlines import Deadlines
from .heartbeat_url import HeartbeatUrl
from .incidents import IncidentWatch
from .leader import Leader
from .vitals import Vitals


class Aside:
    """The threads of one beat that look after pipelines and incidents, and ask for a URL."""

    def __init__(self, app: Celery, settings: Settings, leader: Leader, vitals: Vitals) -> None:
        #: What the dispatcher notes of runs that something is expected of.
        self.deadlines = Deadlines(
            RunKeys(settings.key_prefix).deadlines, settings.expect, app.timezone, settings.history
        )
        self.incidents = IncidentWatch(app, settings, leader, vitals, self.deadlines)
        self._threads: list[Ticker] = [sweeper(app, lambda: leader.leading), self.incidents.ticker]
        if settings.heartbeat_url is not None:
            self._threads.append(HeartbeatUrl(settings.heartbeat_url, leader).ticker)

    def start(self) -> None:
        """Begin, if they have not begun."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End with what is under way; does not wait. A signal handler may call it."""
        for thread in self._threads:
            thread.stop()
