"""Every way there is for messages to go out, and an app and a beat that take one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import redis

from redbeat_lite import Schedules
from tests.support.in_process import MakeApp, MakeBeat
from tests.support.kombus import needs_batches
from tests.support.server import Server

#: Every way of dispatch there is, by the settings that bring it about.
WAYS: dict[str, dict[str, Any]] = {
    "one step": {},
    "one step, in full": {"redbeat_lite_dispatch": "batch"},
    "one by one": {"redbeat_lite_dispatch": "plain"},
    "one by one to another database": {"broker": 1},
}

#: The two ways in which a message may go out: by the commit, or before it, and to another broker. The other ways differ
#: from one of these only in how a message is made.
SENDERS = ("one step", "one by one", "one by one to another database")


class Setup:
    """An app, its schedules and a beat, dispatching in one of the ways."""

    def __init__(self, way: str, make_app: MakeApp, make_beat: MakeBeat, server: Server, **conf: Any) -> None:
        conf = {**WAYS[way], **conf}
        database = conf.pop("broker", 0)
        url = server.url.removesuffix("/0")
        self.app = make_app(broker_url=f"{url}/{database}", redbeat_lite_url=server.url, **conf)
        self.schedules = Schedules(self.app)
        self.make_beat = make_beat
        self.beat = make_beat(self.app)
        self.broker = server.client(db=database)

    def restart(self) -> None:
        """Start another beat; of the one that has crashed nothing is heard any more but the end of its lease."""
        self.beat.leader.resign()
        self.beat = self.make_beat(self.app)

    def crash_before_the_commit(self) -> None:
        """Dispatch what is due, and die when it would be committed."""
        with (
            mock.patch.object(self.beat.store, "commit", side_effect=redis.ConnectionError("crash")),
            pytest.raises(redis.ConnectionError),
        ):
            self.beat.run_due()

    def commit_after(self, meanwhile: Callable[[], object]) -> None:
        """Dispatch what is due, and have something happen between plan and commit."""
        commit = self.beat.store.commit

        def late(*args: Any) -> Any:
            meanwhile()
            return commit(*args)

        with mock.patch.object(self.beat.store, "commit", side_effect=late):
            self.beat.run_due()

    def odd_task(self, **options: Any) -> Any:
        """A task of its own, of which a test makes what it likes."""

        @self.app.task(shared=False, name="odd", **options)
        def odd() -> None: ...

        return odd


exactly_once = pytest.mark.parametrize("setup", [pytest.param("one step", marks=needs_batches)], indirect=True)
every_way = pytest.mark.parametrize("setup", WAYS, indirect=True)
