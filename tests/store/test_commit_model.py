"""The scripts that write entries against a model, whatever happens in whatever order.

Only what was planned advances, unless a freeze has begun since; of two writers one wins, and a call that is sent again
because its reply was lost is done once. The record of changes tells what the writers did, each call that did something
in one line, and nothing else. What is decided against becomes rows, of which those that adjoin are one. What is due is
found from its oldest and its newest end in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from redbeat_lite._base.actors import Who
from redbeat_lite.entries.changes import Edit, decode_change, decode_last, line_of
from redbeat_lite.entries.run import LETTERS, LIFE_MS, Outcome, Row
from redbeat_lite.entries.state import EntryState
from redbeat_lite.runs.run_store import RunKeys, RunStore
from redbeat_lite.settings import Settings
from redbeat_lite.store.connections import Backend
from redbeat_lite.store.keys import Keys
from redbeat_lite.store.leader_store import LeaderStore
from redbeat_lite.store.records import Advance, Command, Frozen, Lost, Term
from redbeat_lite.store.scripts import Scripts
from tests.support.examples import examples
from tests.support.run_rows import text_of
from tests.support.server import Server

KEYS, RUNS = Keys.of("model"), RunKeys("model")
NAMES = ("a", "b", "c", "d")
ALICE, BOB = Who("alice", "api"), Who("bob", "cli")
HISTORY = 3

#: What becomes of an occurrence, by the tens of its nominal time: sent where there is nothing.
DECIDED: dict[int, Outcome] = {1: "left out", 2: "left out", 4: "left out", 5: "skipped", 6: "skipped", 7: "left out"}

#: What workers have told before the commit of a message that was out then, by the tens of its nominal time: outcome,
#: begin, duration and attempt; and which deadlines it has all the same.
TOLD = {
    11: ("y|9|1|1", ("finish",)),
    16: ("s|1|1|0", ()),
    19: ("r|1||0", ("finish",)),
    24: ("s|2|1|0", ("start", "finish")),
    27: ("s|1|2|0", ("finish",)),
}

#: What can happen between a peek and its commit, or at any other moment.
WHAT = (*("create", "edit", "race", "remove", "freeze", "peek", "glance", "commit", "commit_stale", "turn", "turn"),)

#: Those that write what was planned.
COMMITS = ("commit", "turn")

#: What becomes of the reply. A client that loses it sends the same again, and somebody else may have been faster.
REPLIES = ("arrives", "is lost", "is lost, and somebody edits the entry in between")

#: When everything is due that is stored, and an instant after it.
NOW, AFTER_NOW = 10**6, 10**6 + 1

#: As many as some of the peeks find.
MOST = 2

steps = st.lists(
    st.tuples(st.sampled_from(WHAT), st.sampled_from(NAMES), st.sampled_from(REPLIES)),
    max_size=30,
)


#: An entry through all of its decisions, and one that comes back to times where it was.
LONG = [("create", "a", "arrives"), *18 * [("turn", "a", "is lost")]]
DONE = [(what, "b", "is lost") for what in ("create", "edit", "edit", "edit", "turn")]
BACK = [(what, "a", "arrives") for what in ("create", "turn", "remove", "create", "turn")]


class Line(Backend):
    """A connection that can lose the reply of a script, which is then sent once more, as redis-py does."""

    def __init__(self, url: str) -> None:
        super().__init__(Settings(url=url, key_prefix="model"))
        self._sound = Scripts(self.client)
        self.together = self._sound.together
        self.loses: Callable[[], None] | None = None  #: the next reply; called between the two tries

    @property
    def scripts(self) -> Any:
        return self

    def run(self, name: str, keys: Any, *args: Any, **values: Any) -> Any:
        reply = self._sound.run(name, keys, *args, **values)
        between, self.loses = self.loses, None
        if between is None:
            return reply
        between()
        return self._sound.run(name, keys, *args, **values)


class Model:
    """What must be in Redis: the state of each entry, and the messages that were sent."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.store = LeaderStore(line, KEYS)
        self.states: dict[str, EntryState] = {}
        self.definitions: dict[str, bytes] = {}
        self.sent: list[str] = []
        self.planned: dict[str, EntryState] = {}
        self.lines: list[tuple[str, str, str]] = []
        self.last: dict[str, tuple[str, str]] = {}
        self.rows: dict[str, list[Row]] = {name: [] for name in NAMES}
        self.deadlines: dict[str, int] = {}
        self.freeze_text = b""
        self.is_frozen = False

    def do(self, what: str, name: str, reply: str) -> None:
        edited: list[EntryState] = []
        if reply == "is lost":
            self.line.loses = lambda: None
        elif reply != "arrives" and what not in ("peek", "glance"):
            self.line.loses = lambda: self.change_behind_our_back(what, name, edited)
        getattr(self, what)(name)
        self.line.loses = None
        if edited:
            [self.states[name]] = edited
            self.told(name, "edited", "bob")

    def create(self, name: str) -> None:
        state = EntryState.new(100)
        text = f"{name} {len(self.lines)}"
        edit = Edit(name, None, state.encode(), text, score(name, state), line_of(ALICE, "added"))
        done = self.store.put([edit])
        assert done == [name not in self.states]
        if done == [True]:
            self.states[name], self.definitions[name] = state, text.encode()
            self.told(name, "added", "alice")

    def edit(self, name: str) -> None:
        if before := self.states.get(name):
            text = f"{name} {len(self.lines)}" if len(self.lines) % 3 else None
            edit = next_version(name, before, self.text(name))
            assert self.store.put([edit._replace(definition=text)]) == [True]
            self.states[name] = after_edit(before)
            if text:
                self.definitions[name] = text.encode()
            self.told(name, "edited", "alice")

    def race(self, name: str) -> None:
        """Two who have read the same version write the very same."""
        if before := self.states.get(name):
            text = self.text(name)
            self.edit(name)
            assert self.store.put([next_version(name, before, text)]) == [False]

    def remove(self, name: str) -> None:
        if before := self.states.pop(name, None):
            assert bare(EntryState.decode(self.text(name))) == before
            removal = Edit(name, self.text(name), None, line=line_of(ALICE, "removed"))
            assert self.store.put([removal]) == [True]
            self.told(name, "removed", "alice")
            del self.last[name]
            assert self.store.put([removal]) == [False]

    def freeze(self, _: str) -> None:
        """Make a freeze, or end it."""
        self.is_frozen = not self.is_frozen
        before, self.freeze_text = self.freeze_text, b"%d|%d" % (AFTER_NOW * self.is_frozen, len(self.lines))
        assert self.store.set_freeze(before, self.freeze_text, line_of(ALICE, "frozen"))
        self.lines.append(("", "frozen", "alice"))

    def glance(self, name: str) -> None:
        self.peek(name, MOST)

    def peek(self, _: str, most: int = 10) -> None:
        due, upcoming, freeze = self.store.peek(Term("leader", 1), NOW, most)
        assert freeze == self.freeze_text
        if self.is_frozen:
            assert (due, upcoming) == ([], AFTER_NOW)
            return
        self.planned = {each.name.decode(): EntryState.decode(each.state or b"") for each in due}
        found = [(each.score, each.name.decode()) for each in due]
        assert found == ends(self.ranked(), most)
        assert {name: bare(state) for name, state in self.planned.items()} == {
            name: self.states[name] for _, name in found
        }
        assert [each.definition for each in due] == [self.definitions[name] for _, name in found]

    def ranked(self) -> list[tuple[int, str]]:
        return sorted((score(*each), each[0]) for each in self.states.items())

    def commit(self, _: str) -> None:
        for name, before in self.planned.items():
            if told := told_before(before):
                self.line.client.zadd(f"told:{name}", {f"id|{told[0]}|0-1": before.nominal or 0})
        was_frozen = self.is_frozen
        try:
            results = self.store.commit(Term("leader", 1), self.advances(), planned_at=NOW)
        except Frozen:
            assert was_frozen
            return
        assert not (was_frozen and self.is_frozen)
        for (name, before), result in zip(self.planned.items(), results, strict=True):
            assert result == (self.states.get(name) == bare(before))
            if result:
                if is_last(before):
                    del self.states[name]
                    self.last.pop(name, None)
                else:
                    self.states[name] = bare(after_run(before))
                if row := decided_against(before):
                    self.rows[name] = with_row(self.rows[name], row, before.last or 0)
                else:
                    self.sent.append(f"{name} {before.nominal}")
                    self.set_deadlines(name, before)
        self.planned = {}

    def set_deadlines(self, name: str, before: EntryState) -> None:
        nominal = before.nominal or 0
        _, kept = told_before(before) or ("", ("start", "finish"))
        times = {"start": nominal + 1, "finish": nominal + 2}
        self.deadlines.update({f"{what}|{nominal}|{name}": times[what] for what in kept})
        self.deadlines.setdefault(f"success||{name}", nominal + 3)

    def commit_stale(self, _: str) -> None:
        with pytest.raises(Lost):
            self.store.commit(Term("leader", 0), self.advances())

    def turn(self, name: str) -> None:
        """A peek, and at once its commit."""
        loses, self.line.loses = self.line.loses, None
        self.peek(name)
        self.line.loses = loses
        self.commit(name)

    def advances(self) -> list[Advance]:
        return [
            Advance(
                name.encode(),
                before.guard,
                None if is_last(before) else after_run(before).encode(),
                score(name, after_run(before)),
                commands_of(name, before),
            )
            for name, before in self.planned.items()
        ]

    def change_behind_our_back(self, what: str, name: str, edited: list[EntryState]) -> None:
        if what in COMMITS:
            self.freeze(name)
        [stored] = self.store.read([name])
        if stored.state is not None:
            before = bare(EntryState.decode(stored.state))
            assert self.store.put([next_version(name, before, stored.state, BOB)]) == [True]
            edited.append(after_edit(before))

    def text(self, name: str) -> bytes:
        """The stored state of an entry, with its last change."""
        [stored] = self.store.read([name])
        assert stored.state is not None
        return stored.state

    def told(self, name: str, action: str, actor: str) -> None:
        self.lines.append((name, action, actor))
        self.last[name] = (action, actor)


def bare(state: EntryState) -> EntryState:
    """The state without the last change, which scripts write."""
    return replace(state, change="")


def next_version(name: str, before: EntryState, text: bytes, who: Who = ALICE) -> Edit:
    line, after = line_of(who, "edited", fields=(("n", "1", "2"),)), after_edit(before)
    return Edit(name, text, after.encode(), None, score(name, after), line)


def score(name: str, state: EntryState) -> int:
    """When an entry is due: in another order after each step, and often at once with others."""
    return (state.nominal or 0) * (1 + NAMES.index(name)) // 10 % 5


def ends(ranked: list[tuple[int, str]], most: int) -> list[tuple[int, str]]:
    """The oldest half and the newest half."""
    newest = min(most, len(ranked)) // 2
    oldest = min(most, len(ranked)) - newest
    return ranked[:oldest] + ranked[len(ranked) - newest :]


def sending(name: str, state: EntryState) -> tuple[Command, ...]:
    nominal = state.nominal or 0
    run = f"{nominal}|{name}"
    times = [nominal + 1, f"start|{run}", nominal + 2, f"finish|{run}", nominal + 3, f"success||{name}"]
    sent = (("lpush", "sent", f"{name} {nominal}"), ("deadlines", "deadlines", times))
    return (*sent, ("recorded", f"told:{name}", run)) if told_before(state) else sent


def commands_of(name: str, state: EntryState) -> tuple[Command, ...]:
    row = decided_against(state)
    if row is None:
        return sending(name, state)
    last = row.nominal + (row.duration or 0)
    values = (HISTORY, LIFE_MS, state.last or 0, LETTERS[row.outcome], row.nominal, last, row.attempt)
    return (("range", RUNS.rows(name), values),)


def after_edit(state: EntryState) -> EntryState:
    return state.edited(nominal=(state.nominal or 0) + 70)


def after_run(state: EntryState) -> EntryState:
    last = state.last if decided_against(state) else state.nominal
    return replace(state, nominal=(state.nominal or 0) + 10, last=last, count=state.count + 1)


def is_last(state: EntryState) -> bool:
    """Whether an entry is removed with this run: three edits lead there."""
    return state.nominal == 310


def told_before(state: EntryState) -> tuple[str, tuple[str, ...]] | None:
    return TOLD.get((state.nominal or 0) // 10)


def decided_against(state: EntryState) -> Row | None:
    nominal = state.nominal or 0
    outcome, more = DECIDED.get(nominal // 10 % 8), nominal // 10 % 2  # each second one stands for two occurrences
    return Row(nominal, outcome, "", None, 5 * more, 1 + more, "") if outcome else None


def with_row(rows: list[Row], row: Row, sent: int) -> list[Row]:
    """The rows of an entry, the newest last, after another range."""
    if rows and rows[-1].outcome == row.outcome:
        newest, end = rows[-1], rows[-1].nominal + (rows[-1].duration or 0)
        if sent < end < row.nominal:
            length, number = row.nominal + (row.duration or 0) - newest.nominal, newest.attempt + row.attempt
            rows, row = rows[:-1], newest._replace(duration=length, attempt=number)
    return sorted({*rows, row}, key=lambda each: (each.nominal, text_of(each)))[-HISTORY:]


@pytest.fixture(scope="module")
def line(shared_server: Server) -> Iterator[Line]:
    line = Line(shared_server.url)
    yield line
    line.close()


@examples(35)
@given(steps)
@example(LONG)
@example(BACK)
@example(DONE)
def test_only_what_is_as_planned_advances_and_is_sent(
    line: Line, shared_server: Server, steps: list[tuple[str, str, str]]
) -> None:
    with shared_server.client() as client:
        client.flushall()
        client.hset(KEYS.leader, mapping={"token": "leader", "term": 1})
        model = Model(line)
        for step in steps:
            model.do(*step)
        stored = {name.decode(): EntryState.decode(raw) for name, raw in client.hgetall(KEYS.state).items()}
        assert {name: bare(state) for name, state in stored.items()} == model.states
        assert [raw.decode() for raw in reversed(client.lrange("sent", 0, -1))] == model.sent
        deadlines: Any = client.zrange("deadlines", 0, -1, withscores=True)
        assert {member.decode(): at for member, at in deadlines} == model.deadlines
        rows = RunStore(client, "model").rows(NAMES, 100)
        assert [*map(list, map(reversed, rows))] == [*model.rows.values()]
        assert all(0 < client.pttl(RUNS.rows(name)) <= LIFE_MS for name in NAMES if model.rows[name])
        assert client.zcard(KEYS.due) == client.hlen(KEYS.entries) == len(model.states)
        assert {*model.store.names()} == {name.encode() for name in model.states}
        lines = [decode_change(*each) for each in client.xrange(KEYS.changes)]
        told = [((name,) if name else (), *rest) for name, *rest in model.lines]
        assert [(each.names, each.action, each.actor) for each in lines] == told
        assert {each.fields for each in lines if each.action == "edited"} <= {(("n", "1", "2"),)}
        last = {name: decode_last(name, state.change.encode()) for name, state in stored.items()}
        assert {name: (each.action, each.actor) for name, each in last.items()} == model.last
