"""The commit script against a model: whatever happens in whatever order, only what was planned advances."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redbeat_lite.backend import Backend
from redbeat_lite.keys import Keys
from redbeat_lite.settings import Settings
from redbeat_lite.state import State
from redbeat_lite.store import Advance, Edit, Lost, Store, Term
from tests.support.server import Server

KEYS = Keys.of("model")
NAMES = ("a", "b", "c")

#: What can happen between a peek and its commit, or at any other moment.
steps = st.lists(
    st.one_of(
        st.tuples(st.just("create"), st.sampled_from(NAMES)),
        st.tuples(st.just("edit"), st.sampled_from(NAMES)),
        st.tuples(st.just("remove"), st.sampled_from(NAMES)),
        st.tuples(st.just("peek"), st.sampled_from(NAMES)),
        st.tuples(st.just("commit"), st.just("")),
        st.tuples(st.just("commit as a leader that was"), st.just("")),
    ),
    max_size=30,
)


class Model:
    """What must be in Redis: the state of each entry, and the messages that were sent."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.states: dict[str, State] = {}
        self.sent: list[str] = []
        self.planned: dict[str, State] = {}

    def create(self, name: str) -> None:
        state = State.new(100)
        done = self.store.put([Edit(name, None, state.encode(), "{}", 100)])
        assert done == [name not in self.states]
        self.states.setdefault(name, state)

    def edit(self, name: str) -> None:
        if before := self.states.get(name):
            self.states[name] = before.edited(nominal=(before.nominal or 0) + 7)
            self.store.put([Edit(name, before.encode().encode(), self.states[name].encode(), None, 100)])

    def remove(self, name: str) -> None:
        if before := self.states.pop(name, None):
            self.store.put([Edit(name, before.encode().encode(), None)])

    def peek(self, name: str) -> None:
        due, _ = self.store.peek(Term("leader", 1), 10**6, 10)
        self.planned = {each.name.decode(): State.decode(each.state or b"") for each in due}
        assert self.planned == self.states

    def commit(self, _: str) -> None:
        results = self._commit(Term("leader", 1))
        for (name, before), result in zip(self.planned.items(), results, strict=True):
            assert result == (self.states.get(name) == before)
            if result:
                self.states[name] = self.after(before)
                self.sent.append(f"{name} {before.nominal}")
        self.planned = {}

    def commit_stale(self, _: str) -> None:
        with pytest.raises(Lost):
            self._commit(Term("leader", 0))

    def after(self, state: State) -> State:
        return State(
            state.version, state.generation, (state.nominal or 0) + 1, last=state.nominal, count=state.count + 1
        )

    def _commit(self, term: Term) -> list[bool | str]:
        return self.store.commit(
            term,
            0,
            [
                Advance(
                    name.encode(),
                    before.guard,
                    self.after(before).encode(),
                    100,
                    (("lpush", "sent", f"{name} {before.nominal}"),),
                )
                for name, before in self.planned.items()
            ],
        )

    def step(self, what: str) -> Callable[[str], None]:
        return self.commit_stale if what == "commit as a leader that was" else getattr(self, what)


@pytest.fixture(scope="module")
def store(shared_server: Server) -> Iterator[Store]:
    backend = Backend(Settings(url=shared_server.url, key_prefix="model"))
    yield Store(backend, KEYS)
    backend.close()


@settings(max_examples=150, deadline=None)
@given(steps)
def test_only_what_is_as_planned_advances_and_is_sent(
    store: Store, shared_server: Server, steps: list[tuple[str, str]]
) -> None:
    with shared_server.client() as client:
        client.flushall()
        client.hset(KEYS.leader, mapping={"token": "leader", "term": 1})
        model = Model(store)
        for what, name in steps:
            model.step(what)(name)
        stored = {name.decode(): State.decode(raw) for name, raw in client.hgetall(KEYS.state).items()}
        assert stored == model.states
        assert [raw.decode() for raw in reversed(client.lrange("sent", 0, -1))] == model.sent
        assert client.zcard(KEYS.due) == client.hlen(KEYS.entries) == len(model.states)
