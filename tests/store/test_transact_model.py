"""Steps of transact against a dict: two writers, replies that are lost, guards, and the record of changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from redbeat_lite._base.actors import Who
from redbeat_lite.entries.changes import decode_change, decode_last, line_of
from redbeat_lite.settings import Settings
from redbeat_lite.store.connections import Backend
from redbeat_lite.store.keys import Keys
from redbeat_lite.store.scripts import Scripts
from redbeat_lite.store.transact import GuardFailed, Step, record_change, transact
from tests.support.examples import examples
from tests.support.server import Server

KEYS = Keys.of("transact")
NAMES = ("a", "b", "#1", "ä")
WRITERS = ("ann", "bob")

#: Statements over one hash, and the sorted set whose first member wakes the beat.
SET = """
    IF HGET state $1 IS $2
    HSET state $1 $3
    ZADD due $4 $1
    CHANGED $1
"""
REMOVE = """
    IF HGET state $1 IS $2
    HDEL state $1
    ZREM due $1
    NAMED $1
"""
TOGGLE = "HSET meta open $1"
IS_OPEN = "IF HGET meta open IS $1"

#: What becomes of the reply. A client that loses it sends the call again, and another writer may come in between.
REPLIES = ("arrives", "is lost", "is lost, and the other edits")

edits = st.lists(
    st.tuples(st.sampled_from(["set", "set", "remove"]), st.sampled_from(NAMES), st.booleans()), min_size=1, max_size=4
)
calls = st.lists(
    st.tuples(
        st.sampled_from(["edit", "edit", "guarded", "toggle", "read", "record"]),
        st.sampled_from(WRITERS),
        edits,
        st.sampled_from(REPLIES),
    ),
    max_size=20,
)
Edits = list[tuple[str, str, bool]]

LOST = [("edit", "ann", [("set", "a", True), ("set", "a", True), ("remove", "a", True)], REPLIES[2])] * 2


def first_line(text: str) -> str:
    """The text without the last change, which the script adds in a second line."""
    return text.partition("\n")[0]


class Line:
    """Scripts that can lose a reply, and send the call once more then, as redis-py does."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts
        self.between: Callable[[], None] | None = None

    def run(self, *args: Any, **values: Any) -> Any:
        sent: Any = []
        client = self._scripts._client
        send = client.execute_command

        def keep(*call: Any) -> Any:
            sent.append(call)
            return send(*call)

        client.execute_command = keep
        try:
            reply = self._scripts.run(*args, **values)
        finally:
            client.execute_command = send
        between, self.between = self.between, None
        if between is None:
            return reply
        between()
        return send(*sent[-1])


class Model:
    """What must be in Redis, and what each writer has seen there."""

    def __init__(self, line: Line, client: Any) -> None:
        self.line, self.client = line, client
        self.stored: dict[str, str] = {}
        self.due: dict[str, int] = {}
        self.seen: dict[str, dict[str, str]] = {writer: {} for writer in WRITERS}
        self.lines: list[tuple[str, str, tuple[str, ...]]] = []
        self.last: dict[str, tuple[str, str]] = {}
        self.wakes = 0
        self.open = ""
        self.count = 0

    def do(self, what: str, writer: str, asked: Edits, reply: str) -> None:
        if reply == REPLIES[1]:
            self.line.between = lambda: None
        elif reply == REPLIES[2]:
            other = WRITERS[writer == WRITERS[0]]
            self.line.between = lambda: self.edit_as(other, [("set", asked[0][1], True)])
        getattr(self, what)(writer, asked)
        self.line.between = None

    def read(self, writer: str, _: Edits) -> None:
        self.seen[writer] = {name.decode(): text.decode() for name, text in self.client.hgetall(KEYS.state).items()}
        assert {name: first_line(text) for name, text in self.seen[writer].items()} == self.stored

    def edit(self, writer: str, asked: Edits) -> None:
        steps = self.steps(writer, asked)
        expected = self.apply(writer, steps)
        assert self.transact(steps) == expected

    def edit_as(self, writer: str, asked: Edits) -> None:
        self.read(writer, asked)
        self.edit(writer, asked)

    def guarded(self, writer: str, asked: Edits) -> None:
        steps = self.steps(writer, asked)
        guards = [Step(IS_OPEN, ("",)), Step(IS_OPEN, ("yes",))][self.count % 2 :]
        failed = next((guard for guard in guards if guard.values != (self.open,)), None)
        if failed is None:
            assert self.apply(writer, steps) == self.transact(steps, guards)
            return
        with pytest.raises(GuardFailed) as caught:
            self.transact(steps, guards)
        # If the reply was lost, the call ran again, and the other writer changed nothing that a guard reads.
        assert caught.value.args[0] is failed

    def toggle(self, writer: str, _: Edits) -> None:
        self.open = "" if self.open else "yes"
        self.lines.append(("frozen", writer, ()))
        step = Step(TOGGLE, (self.open,), line_of(Who(writer, "api"), "frozen"))
        assert self.transact([step]) == [True]

    def record(self, writer: str, asked: Edits) -> None:
        names = [name for _, name, _ in asked]
        self.lines.append(("run now", writer, tuple(names)))
        record_change(self.line, KEYS, line_of(Who(writer, "api"), "run now"), names)  # type: ignore[arg-type]

    def steps(self, writer: str, asked: Edits) -> list[Step]:
        steps = []
        for what, name, is_recorded in asked:
            self.count += 1
            seen = self.seen[writer].get(name, "")
            action: Any = "edited" if what == "set" else "removed"
            line = line_of(Who(writer, "api"), action) if is_recorded else None
            if what == "set":
                steps.append(Step(SET, (name, seen, f"{self.count} by {writer}", 100 - self.count % 7), line))
            else:
                steps.append(Step(REMOVE, (name, seen), line))
        return steps

    def transact(self, steps: Sequence[Step], guards: Sequence[Step] = ()) -> list[bool]:
        return transact(self.line, KEYS, steps, guards, wakes=True)  # type: ignore[arg-type]

    def apply(self, writer: str, steps: Sequence[Step]) -> list[bool]:
        """Make the steps in the dict; return for each whether it is made."""
        first = min(self.due.values(), default=float("inf"))
        made = []
        named: dict[str, list[str]] = {}
        for step in steps:
            name, seen, *after = step.values
            made.append(self.stored.get(name, "") == first_line(seen))
            if not made[-1]:
                continue
            self.stored.pop(name, None)
            self.last.pop(name, None)
            self.due.pop(name, None)
            if after:
                self.stored[name], self.due[name] = after
            if step.line is not None:
                named.setdefault("edited" if after else "removed", []).append(name)
        for action in dict.fromkeys("edited" if step.statement is SET else "removed" for step in steps if step.line):
            if action in named:
                self.lines.append((action, writer, tuple(named[action])))
                for name in named[action]:
                    self.last.pop(name, None)
                    if action == "edited" and name in self.stored:
                        self.last[name] = (action, writer)
        self.wakes += min(self.due.values(), default=float("inf")) < first
        return made


@pytest.fixture(scope="module")
def backend(shared_server: Server) -> Iterator[Backend]:
    backend = Backend(Settings(url=shared_server.url, key_prefix="transact"))
    yield backend
    backend.close()


@examples(40)
@given(calls)
@example(LOST)
def test_each_step_is_made_once_if_its_checks_hold(
    backend: Backend, shared_server: Server, calls: list[tuple[str, str, Edits, str]]
) -> None:
    with shared_server.client() as client, client.pubsub() as pubsub:
        client.flushall()
        pubsub.subscribe(KEYS.wake)
        assert pubsub.get_message(timeout=5)["type"] == "subscribe"
        model = Model(Line(Scripts(backend.client)), client)
        for call in calls:
            model.do(*call)
        texts = {name.decode(): text.decode() for name, text in client.hgetall(KEYS.state).items()}
        assert {name: first_line(text) for name, text in texts.items()} == model.stored
        assert {name.decode(): score for name, score in client.zrange(KEYS.due, 0, -1, withscores=True)} == model.due
        lines = [decode_change(*line) for line in client.xrange(KEYS.changes)]
        assert [(line.action, line.actor, line.names) for line in lines] == model.lines
        assert [line.count for line in lines] == [len(names) for *_, names in model.lines]
        lasts = {name: text.partition("\n")[2].encode() for name, text in texts.items()}
        kept = {name: decode_last(name, last) for name, last in lasts.items() if last}
        assert {name: (change.action, change.actor) for name, change in kept.items()} == model.last
        client.publish(KEYS.wake, "end")
        heard = [*iter(lambda: pubsub.get_message(timeout=5)["data"], b"end")]
        assert heard == [b"head"] * model.wakes
        assert all(0 < client.pttl(key) <= 60_000 for key in client.keys(KEYS.reply("*")))


def test_a_step_that_fails_stops_no_other(backend: Backend, shared_server: Server) -> None:
    with shared_server.client() as client:
        client.flushall()
        steps = [Step(SET, (f"n{n}", "" if n % 2 else "another", "text", n)) for n in range(250)]
        assert transact(backend.scripts, KEYS, steps) == [bool(n % 2) for n in range(250)]
        assert client.hlen(KEYS.state) == client.zcard(KEYS.due) == 125
