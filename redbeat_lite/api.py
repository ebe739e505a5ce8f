"""The Python API: schedules added, changed and removed at runtime, from any process."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from datetime import datetime, timedelta, tzinfo
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, TypeVar, Unpack
from uuid import uuid4

from celery.beat import BeatLazyFunc
from celery.utils.log import get_logger
from kombu.serialization import dumps as dump_message

from . import instants, lifecycle
from .backend import Backend
from .clock import wall_ms
from .codec import is_plain, pack
from .configured import entry_with_defaults
from .definition import decode, encode
from .emission import Occurrence, emission
from .entry import Entry, is_name
from .errors import ConfigOwned, CorruptEntry, EntryChanged, EntryExists, EntryNotFound, InvalidEntry, UnsupportedFormat
from .keys import Keys
from .misfire import Misfire
from .once.emission import ONCE_HEADER, Claim, give_back, once_header, take
from .once.policy import Once
from .once.store import LockStore
from .settings import Settings
from .state import State
from .store import PAGE, Edit, Store, Stored, chunks
from .views import PagedItems, PagedValues

if TYPE_CHECKING:
    from celery import Celery

logger = get_logger(__name__)

#: How often an edit is tried over when the beat advanced the entry at the same moment. An entry of 50 ms can lose this
#: race a few times in a row, not fifty times.
_TRIES = 50

#: Longest note of a pause, in characters: it travels with the entry's state on every look at it.
_MAX_NOTE = 1000

_Result = TypeVar("_Result")


class Policies(TypedDict, total=False):
    """The optional fields of an entry; see :class:`redbeat_lite.Entry`."""

    expires: float | timedelta | Literal["interval"] | None
    once: bool | Once | Mapping[str, Any]
    misfire: str | Misfire | Mapping[str, Any]
    jitter: float | timedelta
    start_at: datetime | None
    end_at: datetime | None
    max_runs: int | None
    enabled: bool
    description: str
    remove_when_done: bool


class Upcoming(NamedTuple):
    """One occurrence to come: when it fires, of which entry, and the nominal time the schedule says."""

    at: datetime
    name: str
    nominal: datetime


# Schedules.list() hides the builtin from annotations inside the class.
Entries = list[Entry]
Occurrences = list[Upcoming]
Queue = list[tuple[int, str, Entry, State]]


class Schedules(MutableMapping[str, Entry]):
    """All entries of one schedule, as a mapping from name to :class:`Entry`.

    A change takes effect at once: it wakes the beat if the beat has to do something earlier because of it. Every
    method may raise redis-py's errors when the server cannot be reached.

    Parameters:
        app: the Celery app whose settings say where the schedule is. No connection is opened yet.
    """

    def __init__(self, app: Celery) -> None:
        self._app = app

    @cached_property
    def _settings(self) -> Settings:
        return Settings.from_app(self._app)

    @cached_property
    def _store(self) -> Store:
        return Store(self._backend, Keys.of(self._settings.key_prefix))

    @cached_property
    def _backend(self) -> Backend:
        return Backend(self._settings)

    @cached_property
    def _zone(self) -> tzinfo:
        return self._app.timezone  # type: ignore[no-any-return]  # Celery ships no types

    # -- reading ------------------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Entry:
        """The entry of this name, with its state.

        Raises:
            EntryNotFound: there is none; a ``KeyError``.
            CorruptEntry: what Redis holds cannot be read.
        """
        return self._readable(self._stored(name))

    def __contains__(self, name: object) -> bool:
        return is_name(name) and self._store.exists(name)

    def __len__(self) -> int:
        return self._store.count()

    def __iter__(self) -> Iterator[str]:
        return self._store.names()

    def items(self) -> PagedItems:
        """Names and entries, read a page per round trip."""
        return PagedItems(self, self._entries)

    def values(self) -> PagedValues:
        """The entries, read a page per round trip."""
        return PagedValues(self, self._entries)

    def list(self, offset: int = 0, limit: int = 100, order: Literal["due", "name"] = "due") -> Entries:
        """A page of entries; constant round trips, whatever is stored.

        Parameters:
            offset: how many to leave out first.
            limit: how many at most.
            order: ``"due"``: the next to fire first, those that will not fire last; or ``"name"``, for which all names
                are read first, in one command.
        """
        for field, value in (("offset", offset), ("limit", limit)):
            if type(value) is not int or value < 0:
                raise ValueError(f"{field}: expected a whole number from 0, got {value!r}")
        if order == "due":
            page = self._store.page(offset, limit) if limit else []
        elif order == "name":
            page = self._store.read(self._store.sorted_names()[offset : offset + limit])
        else:
            raise ValueError(f"order: expected 'due' or 'name', got {order!r}")
        return [entry for stored in page if (entry := self._listed(stored)) is not None]

    def upcoming(self, until: datetime, limit: int = 1000) -> Occurrences:
        """What will fire from now on, in order, as the beat itself would plan it.

        Parameters:
            until: aware; the last instant to look at.
            limit: how many occurrences at most.
        """
        last, now = instants.to_ms(instants.aware("until", until)), wall_ms()
        found: Occurrences = []
        queue: Queue = [
            (max(entry.due, now), entry.name, entry, _state(entry))
            for entry in self._entries()
            if entry.due is not None and "schedule" not in entry.local
        ]
        heapq.heapify(queue)
        while queue and len(found) < limit:
            at, name, entry, state = heapq.heappop(queue)
            if at > last:
                break
            plan = lifecycle.plan(entry, state, at, self._zone)
            found += [Upcoming(instants.from_ms(at), name, instants.from_ms(nominal)) for nominal in plan.emit]
            after = lifecycle.dispatched(state, plan, 0)
            due = lifecycle.due_time(entry, after, self._zone)
            if due is not None:
                heapq.heappush(queue, (max(due, at), name, entry, after))
        return found[:limit]

    def quarantined(self) -> dict[str, dict[str, Any]]:
        """Entries that were set aside: name -> ``error``, ``definition``, ``state``, ``at`` (epoch milliseconds)."""
        return self._store.quarantined()

    # -- writing ------------------------------------------------------------------------------------------------------

    def add(
        self,
        name: str,
        task: Any,
        schedule: Any,
        args: Any = (),
        kwargs: Any = None,
        options: Any = None,
        *,
        replace: bool = False,
        **policies: Unpack[Policies],
    ) -> Entry:
        """Store a new entry and return it; see :class:`Entry` for the parameters.

        Parameters:
            replace: overwrite an entry of this name. Its history is kept, and its next run too unless the schedule is
                another, so that adding the same entry at every start of an application postpones nothing.

        Raises:
            InvalidEntry: a field is wrong, or cannot be stored or sent.
            EntryExists: the name is taken, and ``replace`` is not set.
            ConfigOwned: the name is taken by a config entry.
        """
        fields = {"task": task, "schedule": schedule, "args": args, "kwargs": kwargs, "options": options, **policies}
        entry = self._prepared(entry_with_defaults(self._settings, name, fields, app=self._app))
        if replace:
            return self._replace(entry)
        self._create([entry])
        return entry

    def add_many(self, entries: Iterable[Entry], *, replace: bool = False) -> None:
        """Store many entries, 1,000 in a round trip (two with ``replace``). All are checked before any is stored.

        Raises:
            InvalidEntry: a field of an entry is wrong; nothing was stored.
            EntryExists: names were taken, the message says which; all others are stored.
            ConfigOwned: as for :meth:`add`; entries of earlier round trips are stored.
        """
        prepared = [self._prepared(entry) for entry in entries]
        if not replace:
            self._create(prepared)
            return
        for entry in prepared:
            encode(entry)
        for chunk in chunks(prepared, PAGE):
            stored = self._store.read([entry.name for entry in chunk])
            edits = [self._replacing(entry, old) for entry, old in zip(chunk, stored, strict=True)]
            done = self._store.put(edits)
            for entry, ok in zip(chunk, done, strict=True):
                if not ok:  # the beat advanced it at this very moment
                    self._replace(entry)

    def __setitem__(self, name: str, entry: Entry) -> None:
        """Create or replace, as :meth:`add` with ``replace``."""
        if not isinstance(entry, Entry) or entry.name != name:
            raise InvalidEntry("entry", f"an Entry named {name!r}", entry)
        self._replace(self._prepared(entry))

    def update(self, name: str, *, if_version: int | None = None, **changes: Any) -> Entry:  # type: ignore[override]
        """Change the named fields of an entry and leave the others; returns the entry as it is now.

        Not ``MutableMapping.update``: use :meth:`add_many` for many entries. A changed schedule counts from now on and
        never fires for the past.

        Parameters:
            if_version: change the entry only if this is its version.
            changes: fields of :class:`Entry` by name.

        Raises:
            EntryNotFound: there is no such entry.
            EntryChanged: its version is not ``if_version``.
            InvalidEntry: a field is unknown or wrong; nothing was changed.
            ConfigOwned: it is a config entry.
        """

        def edit(stored: Stored) -> tuple[Entry, Edit]:
            before = self._readable(stored)
            _check_runtime(before)
            if if_version is not None and before.version != if_version:
                raise EntryChanged(f"entry {name!r} has version {before.version} by now, not {if_version}")
            after = self._prepared(before.replace(**changes))
            return after, self._revision(before, after, stored)

        return self._edit(name, edit)

    def __delitem__(self, name: str) -> None:
        """Remove an entry, for good. A config entry comes back when a beat next reads its configuration.

        Raises:
            EntryNotFound: there is none.
        """

        def edit(stored: Stored) -> tuple[None, Edit]:
            return None, Edit(name, stored.state, None)

        self._edit(name, edit)

    def remove(self, name: str, *, missing_ok: bool = False) -> None:
        """Remove an entry.

        Parameters:
            missing_ok: whether it is fine that there is none.

        Raises:
            EntryNotFound: there is none.
        """
        try:
            del self[name]
        except EntryNotFound:
            if not missing_ok:
                raise

    def clear(self) -> None:
        """Remove every entry. Config entries come back when a beat next reads its configuration."""
        while page := self._store.page(0, PAGE):
            self._store.put(Edit(stored.name, stored.state, None) for stored in page)

    def pause(self, name: str, note: str = "") -> Entry:
        """Stop an entry from firing; it keeps its history, over restarts and config changes too.

        Parameters:
            note: why, for those who come after.

        Raises:
            EntryNotFound: there is none.
        """
        if not isinstance(note, str) or len(note) > _MAX_NOTE:
            raise InvalidEntry("note", f"text of at most {_MAX_NOTE} characters", note, entry=name)
        note = note.encode("utf-8", "replace").decode()

        def edit(stored: Stored) -> tuple[Entry, Edit]:
            entry = self._readable(stored)
            return self._restated(entry, stored, lifecycle.paused(_state(entry), note))

        return self._edit(name, edit)

    def resume(self, name: str, *, catch_up: bool = False) -> Entry:
        """Let a paused entry fire again, from its next instant on; nothing happens if it is not paused.

        Parameters:
            catch_up: treat what the pause held back as missed, and leave it to the entry's misfire policy.

        Raises:
            EntryNotFound: there is none.
            ConfigOwned: its schedule cannot be stored, and this app's configuration does not have it.
        """

        def edit(stored: Stored) -> tuple[Entry, Edit]:
            entry = self._readable(stored)
            state = _state(entry)
            if state.paused:
                _check_complete(entry, "schedule")
                state = lifecycle.resumed(entry, state, wall_ms(), self._zone, catch_up=catch_up)
            return self._restated(entry, stored, state)

        return self._edit(name, edit)

    def run_now(self, name: str) -> str:
        """Publish one extra task with the entry's own arguments and options, and return its id. The plan is untouched.

        It takes the entry's once-lock; where another task holds that, the worker does as the policy says.

        Raises:
            EntryNotFound: there is none.
            ConfigOwned: it holds what cannot be stored, and this app's configuration does not have it.
            kombu.exceptions.OperationalError: the broker cannot be reached.
        """
        entry, now = self[name], wall_ms()
        _check_complete(entry, *entry.local)
        following = lifecycle.following(entry, _state(entry).nominal, now, self._zone)
        task_id, task = str(uuid4()), self._app.tasks.get(entry.task)
        entry.args = tuple(_evaluated(value) for value in entry.args)
        entry.kwargs = {key: _evaluated(value) for key, value in entry.kwargs.items()}
        with self._once_lock(entry, task_id) as headers:
            emitted = emission(Occurrence(entry, task_id, now, following, headers))
            options = {**emitted.options, "retry": entry.options.get("retry")}
            if task is not None:
                task.apply_async(entry.args, entry.kwargs, **options)
            else:
                self._app.send_task(entry.task, entry.args, entry.kwargs, **options)
        return task_id

    @contextmanager
    def _once_lock(self, entry: Entry, task_id: str) -> Iterator[dict[str, Any] | None]:
        """Take the once-lock of an extra run, if it is free; yields the headers that tell the worker of it."""
        if entry.once is None:
            yield None
            return
        queue, task = str(entry.options.get("queue") or ""), self._app.tasks.get(entry.task)
        claim = Claim(entry.name, entry.task, entry.args, entry.kwargs, entry.once, task_id, task=task, queue=queue)
        locks = LockStore(self._backend.client, self._settings.key_prefix)
        [taken] = take(locks, [claim])
        try:
            yield {ONCE_HEADER: once_header(claim.key, claim.once, queued=claim.at_publish and taken)}
        except BaseException:
            if taken:
                give_back(locks, [claim])
            raise

    def release(self, name: str) -> Entry:
        """Put a quarantined entry back, as new, once what was wrong with it is mended.

        Raises:
            EntryNotFound: no entry of this name is in quarantine.
            CorruptEntry: its definition still cannot be used; it stays in quarantine.
            EntryExists: the name is taken by now; it stays in quarantine.
        """
        record = self._store.quarantined().get(name)
        if record is None:
            raise EntryNotFound(f"no entry {name!r} is in quarantine")
        if not isinstance(record.get("definition"), str):
            raise CorruptEntry(f"entry {name!r} has no definition left to put back: {record.get('error')}")
        entry = decode(name, record["definition"].encode())
        try:
            entry = self._prepared(entry)
        except InvalidEntry as exc:
            raise CorruptEntry(str(exc)) from exc
        self._create([entry])
        return entry

    # -- within -------------------------------------------------------------------------------------------------------

    def _stored(self, name: str) -> Stored:
        # A name that no entry can have is not there, as in any mapping.
        stored = self._store.read([name])[0] if is_name(name) else None
        if stored is None or stored.definition is None:
            raise EntryNotFound(f"no entry {name!r} is stored")
        return stored

    def _readable(self, stored: Stored) -> Entry:
        name = stored.name.decode()
        try:
            entry = decode(name, stored.definition or b"")
            entry.state = State.decode(stored.state or b"")
        except CorruptEntry as exc:
            raise CorruptEntry(f"entry {name!r}: {exc}") from exc
        entry.app, entry.due = self._app, stored.score
        return self._completed(entry)

    def _completed(self, entry: Entry) -> Entry:
        """A config entry with what cannot be stored, where this app's own configuration holds it."""
        if not entry.local or entry.owner != self._settings.owner:
            return entry
        fields = (self._app.conf.beat_schedule or {}).get(entry.name)
        if fields is None:
            return entry
        try:
            own = entry_with_defaults(self._settings, entry.name, fields, app=self._app)
        except InvalidEntry:  # the beat says so in its log
            return entry
        for field in entry.local:
            setattr(entry, field, getattr(own, field))
        entry.local = ()
        return entry

    def _listed(self, stored: Stored) -> Entry | None:
        try:
            return self._readable(stored)
        except (CorruptEntry, UnsupportedFormat, UnicodeDecodeError) as exc:
            logger.warning("left out of the list, and of every run until it is mended: %s", exc)
            return None

    def _entries(self) -> Iterator[Entry]:
        return (entry for stored in self._store.pages() if (entry := self._listed(stored)) is not None)

    def _prepared(self, entry: Entry) -> Entry:
        """Everything that can be wrong with an entry is found here or by ``encode``, before anything is written."""
        if not isinstance(entry, Entry):
            raise InvalidEntry("entry", "an Entry", entry)
        lifecycle.check(entry, wall_ms(), self._zone)
        _check_message(entry, self._app)
        if self._app.finalized and entry.task not in self._app.tasks:
            logger.warning("entry %r: no task %r is registered in this app", entry.name, entry.task)
        return entry

    def _create(self, entries: Entries) -> None:
        edits = []
        for entry in entries:
            definition, now = encode(entry), wall_ms()
            entry.state = lifecycle.created(entry, now, self._zone)
            entry.due = lifecycle.due_time(entry, entry.state, self._zone)
            edits.append(Edit(entry.name, None, entry.state.encode(), definition, entry.due))
        done = self._store.put(edits)
        taken = [entry.name for entry, ok in zip(entries, done, strict=True) if not ok]
        if taken:
            names = ", ".join(map(repr, taken[:10])) + (f" and {len(taken) - 10} more" if len(taken) > 10 else "")
            raise EntryExists(f"already stored: {names}; pass replace=True to overwrite")

    def _replace(self, entry: Entry) -> Entry:
        for _ in range(_TRIES):
            [stored] = self._store.read([entry.name])
            if self._store.put([self._replacing(entry, stored)]) == [True]:
                return entry
        raise EntryChanged(f"entry {entry.name!r} is being changed too often to be replaced")

    def _replacing(self, entry: Entry, stored: Stored) -> Edit:
        before = self._listed(stored) if stored.definition is not None else None
        if before is not None:
            _check_runtime(before)
            return self._revision(before, entry, stored)
        entry.state = lifecycle.created(entry, wall_ms(), self._zone)
        entry.due = lifecycle.due_time(entry, entry.state, self._zone)
        return Edit(entry.name, stored.state, entry.state.encode(), encode(entry), entry.due)

    def _revision(self, before: Entry, after: Entry, stored: Stored) -> Edit:
        """The edit that makes ``before`` to ``after``, which gets its new state."""
        after.state = _state(before)
        if before != after:
            after.state = lifecycle.revised(before, after.state, after, wall_ms(), self._zone)
        return self._written(after, stored, encode(after))

    def _restated(self, entry: Entry, stored: Stored, state: State) -> tuple[Entry, Edit]:
        entry.state = state
        return entry, self._written(entry, stored, None)

    def _written(self, entry: Entry, stored: Stored, definition: str | None) -> Edit:
        state = _state(entry)
        entry.due = lifecycle.due_time(entry, state, self._zone)
        return Edit(entry.name, stored.state, state.encode(), definition, entry.due)

    def _edit(self, name: str, edit: Callable[[Stored], tuple[_Result, Edit]]) -> _Result:
        for _ in range(_TRIES):
            result, change = edit(self._stored(name))
            if self._store.put([change]) == [True]:
                return result
        raise EntryChanged(f"entry {name!r} is being changed too often to be edited")


def _state(entry: Entry) -> State:
    assert entry.state is not None
    return entry.state


def _evaluated(value: Any) -> Any:
    return value() if isinstance(value, BeatLazyFunc) else value


def _check_complete(entry: Entry, *needed: str) -> None:
    if set(needed) & set(entry.local):
        raise ConfigOwned(
            f"entry {entry.name!r} holds what cannot be stored, and only the app of {entry.owner!r} knows; do it there"
        )


def _check_runtime(entry: Entry) -> None:
    if entry.owner is not None:
        raise ConfigOwned(
            f"entry {entry.name!r} belongs to the configuration of {entry.owner!r}; change it there, or pause it here"
        )


def _check_message(entry: Entry, app: Celery) -> None:
    """Refuse arguments that the message's serializer cannot write, now and not at the first run."""
    task = app.tasks.get(entry.task) if app.finalized else None
    serializer = entry.options.get("serializer") or getattr(task, "serializer", None) or app.conf.task_serializer
    if serializer == "json" and all(map(is_plain, entry.args)) and all(map(is_plain, entry.kwargs.values())):
        return
    try:
        # All at once, which is cheap; one by one only to tell which it was.
        dump_message((entry.args, entry.kwargs), serializer=serializer)  # type: ignore[no-untyped-call]
    except Exception:  # noqa: BLE001 - whatever a serializer raises
        _check_each_argument(entry, serializer)


def _check_each_argument(entry: Entry, serializer: Any) -> None:
    named = [(f"args[{index}]", value) for index, value in enumerate(entry.args)]
    named += [(f"kwargs.{key}", value) for key, value in entry.kwargs.items()]
    for field, value in named:
        try:
            dump_message(value, serializer=serializer)  # type: ignore[no-untyped-call]  # untyped in kombu
        except Exception as exc:
            _check_storable(value, field, entry)
            expected = f"a value that the serializer {serializer!r} can write"
            raise InvalidEntry(field, expected, value, entry=entry.name) from exc


def _check_storable(value: Any, field: str, entry: Entry) -> None:
    """What cannot even be stored is named to its exact place inside the value."""
    try:
        pack(value, field)
    except InvalidEntry as exc:
        raise exc.of(entry.name) from None
