"""What pipelines do in Redis: one method for each script, plain values in and out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from celery import Celery

from ..once.runtime import Runtime
from ..runs.store import RunStore
from ..storage.lazy import of_process
from ..storage.patience import patiently
from ..storage.replies import text, text_or_none, texts
from ..storage.scripts import Scripts
from .definition import MAX_STEPS, Definition
from .keys import RunKeys, run_of, turn, turns_key
from .run_index import Index
from .run_status import LIVE

#: ms that a run without a sign of life is kept, where its ttl is not longer.
KEEP_MS = 7 * 86_400_000

#: ms for which it is known, after the record is gone, that there was such a run.
REMEMBER_MS = 90 * 86_400_000

#: Seconds for which something is recorded again and again while the server does not answer: a body's outcome is not to
#: be lost because the server restarts, and each script knows its own earlier work.
_PATIENCE = 30.0

#: How often a step may lose its worker. One more ends the run: what kills five workers kills the sixth.
MAX_DEATHS = 5

#: A message that does not begin is published again at most once in this many ms; the guard drops the copies.
RESEND_MAX_MS = 3_600_000

#: ms that whoever filled an outbox has to empty it.
OUTBOX_GRACE_MS = 3_000

#: ms between the suspicion that a step's worker is dead and the verdict, beside those between two signs of its life.
SUSPICION_MS = 2_000

#: Definitions kept in a process.
_CACHE = 500

#: Step number -> (round, attempt).
Outbox = dict[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Ref:
    """One copy of one step's message.

    Parameters:
        round, attempt: which start by the sweeper, and which of Celery's retries.
        token: of the delivery; empty where there was none.
    """

    run: str
    step: int
    stage: int
    round: int
    attempt: int = 0
    token: str = ""


class Completed(NamedTuple):
    """A word of ``pipeline/complete.lua``, the state of the run, and what is to be done now."""

    word: str
    state: str
    outbox: Outbox
    revoke: list[str]

    @property
    def over(self) -> bool:
        """Whether the run has ended, and this is news."""
        return self.word == "done" and self.state not in LIVE


class Running(NamedTuple):
    """A step that should be running."""

    ref: Ref
    task_id: str
    suspect: bool


class Look(NamedTuple):
    """What the sweeper sees of a run: a word of ``pipeline/check.lua``, what is to be published, and what should run.

    Parameters:
        entry, turn: in whose line it stands, or empty, and how.
    """

    word: str
    outbox: Outbox
    running: list[Running]
    entry: str
    turn: str


class PipelineStore:
    """The runs of one app. Get it with :func:`store_of`."""

    def __init__(self, app: Celery) -> None:
        runtime = Runtime.of(app)
        self._prefix, lease = runtime.settings.key_prefix, runtime.settings.once_lease
        self.guards, self.client = runtime.store, runtime.store.client
        self.index = Index(self.client, self._prefix, min(max(lease / 2, 0.5), 10.0))
        self.resend_ms = round(1000 * max(lease, 1.0))
        self.runs = RunStore(self.client, self._prefix)
        self._scripts = Scripts(self.client)
        self._definitions: dict[str, Definition] = {}

    def keys(self, run_id: str) -> RunKeys:
        return RunKeys.of(self._prefix, run_id)

    def _run(self, script: str, run_id: str, *args: Any) -> Any:
        return self._scripts.run(script, self.keys(run_id), args)

    def _insist(self, script: str, run_id: str, *args: Any) -> Any:
        """The same, again and again while the server does not answer."""
        return patiently(lambda: self._run(script, run_id, *args), _PATIENCE)

    # -- a run --------------------------------------------------------------------------------------------------------

    def start(
        self, run_id: str, definition: Definition, params: str, entry: str = "", attempt: str = ""
    ) -> tuple[str, Outbox]:
        """Create a run, which an ``entry`` may start by an ``attempt``: as ``pipeline/start.lua`` says."""
        # The params lie by themselves; whoever publishes or looks needs to read the steps alone.
        definition = replace(definition, params={})
        # First the index: a run that nobody would ever look at again must not be.
        self.index.look_again(run_id)
        deadline = "" if definition.deadline is None else round(definition.deadline * 1000)
        stored = (definition.encode(), definition.sizes, params)
        lives = (round(definition.ttl * 1000), _keep_ms(definition))
        how = (int(definition.revoke_siblings), definition.at_once or MAX_STEPS, deadline)
        whose = (entry, attempt, int(bool(entry) and definition.overlap != "allow"))
        word, outbox = self._run("pipeline/start", run_id, *stored, *lives, *how, *whose)
        if word in (b"run", b"wait"):
            # A sweep of the moment between the two found no run, and has forgotten it.
            self.index.look_again(run_id)
            self._remember(run_id, definition)
        return text(word), _outbox(outbox)

    def sent(self, run_id: str, items: Outbox) -> None:
        """Take from the outbox what was published."""
        sent = [word for step, (round_, attempt) in items.items() for word in (step, f"{round_}.{attempt}")]
        self._run("pipeline/sent", run_id, self.resend_ms, RESEND_MAX_MS, *sent)

    def begin(self, ref: Ref, task_id: str, *, again: bool, worker: str, renew_ms: int) -> tuple[str, bytes]:
        """Whether a step may run: a word of ``pipeline/begin.lua``, and with ``run`` the params as JSON."""
        what = (ref.step, ref.stage, ref.round, ref.attempt, ref.token)
        which = (task_id, int(again), worker, MAX_DEATHS, renew_ms)
        word, params = self._insist("pipeline/begin", ref.run, *what, *which)
        return text(word), params

    def complete(self, ref: Ref, outcome: str, result: str) -> Completed:
        """Record how a step ended: ``"SUCCEEDED"`` with its JSON, ``"FAILED"`` or ``"REVOKED"`` with the reason."""
        what = (ref.step, ref.round, ref.attempt, ref.token, outcome, result, REMEMBER_MS)
        word, state, outbox, revoke = self._insist("pipeline/complete", ref.run, *what)
        return Completed(text(word), text(state), _outbox(outbox), texts(revoke))

    def progress(self, ref: Ref, percent: float, note: str) -> None:
        """Note what a step tells of its progress."""
        self._run("pipeline/progress", ref.run, ref.step, ref.round, ref.token, percent, note)

    def wait(self, ref: Ref, attempt: int, delay_ms: int, *, sent: bool) -> bool:
        """The step of ``ref`` waits for its ``attempt``, due in ``delay_ms``, whose message was ``sent`` or was not."""
        what = (ref.step, ref.round, ref.token, attempt, delay_ms + sent * self.resend_ms, int(sent))
        return bool(self._insist("pipeline/wait", ref.run, *what))

    def go(self, turn: str) -> tuple[str, str, Outbox]:
        """A turn has come: the run, a word of ``pipeline/go.lua`` and what to publish."""
        resumed, _, run_id = turn.partition(":")
        word, outbox = self._run("pipeline/go", run_id, resumed)
        return run_id, text(word), _outbox(outbox)

    def resume(self, run_id: str, resumed: int, running: Sequence[str]) -> tuple[str, Outbox]:
        """Have a run that has ended go on, with the tasks that are ``running``: as ``pipeline/resume.lua`` says."""
        self.index.reopen(run_id)  # First, and again, as for a start.
        now, outbox = self._run("pipeline/resume", run_id, REMEMBER_MS, resumed, *running)
        self.index.look_again(run_id)
        return text(now), _outbox(outbox)

    def line(
        self, entry: str, turn: str = "", gone: str = "", most: int = 0, *, runs: bool = False
    ) -> tuple[bool, str]:
        """Have somebody stand in the line of an entry, and who is ``gone`` leave: as ``pipeline/turn.lua`` says."""
        what = (turn, gone, most, REMEMBER_MS, int(runs))
        joined, first = self._scripts.run("pipeline/turn", (turns_key(self._prefix, entry),), what)
        return bool(joined), text(first)

    def first(self, entry: str) -> str | None:
        """The run of an entry whose turn it is, if there is one."""
        turns = self.client.zrange(turns_key(self._prefix, entry), 0, 0)
        return run_of(text(turns[0])) if turns else None

    def fields(self, run_id: str, *names: str) -> list[str | None]:
        """These fields of a run."""
        return [text_or_none(each) for each in self.client.hmget(self.keys(run_id).run, names)]

    def cancel(self, run_id: str, why: str = "", *, terminate: bool = False) -> tuple[int, list[str]]:
        """As ``pipeline/cancel.lua`` says."""
        result, running = self._run("pipeline/cancel", run_id, REMEMBER_MS, why, int(terminate))
        return int(result), texts(running)

    def revoked(self, run_id: str) -> None:
        """The running siblings of the step that failed were revoked."""
        self.client.hdel(self.keys(run_id).run, "revoke")

    # -- reading ------------------------------------------------------------------------------------------------------

    def read(self, run_id: str) -> tuple[dict[str, str], str, str]:
        """The hash ``run``, the steps as JSON, and how the run ended if only that is known."""
        run, steps, gone = self._run("pipeline/status", run_id)
        fields = texts(run)
        return dict(zip(fields[::2], fields[1::2], strict=True)), text(steps), text(gone)

    def definition(self, run_id: str) -> Definition | None:
        """The definition of a run; ``None`` if there is none. Never changes, so it is read once."""
        found = self._definitions.get(run_id)
        if found is None:
            stored = self.client.hget(self.keys(run_id).run, "definition")
            if stored is None:
                return None
            found = self._remember(run_id, Definition.decode(stored))
        return found

    def _remember(self, run_id: str, definition: Definition) -> Definition:
        if len(self._definitions) >= _CACHE:
            self._definitions.clear()
        self._definitions[run_id] = definition
        return definition

    def results(self, run_id: str, stages: Iterable[int], steps: Iterable[int]) -> list[bytes | None]:
        """The params these stages began with, and what these steps returned, as JSON."""
        names = [*(f"stage:{stage}" for stage in stages), *map(str, steps)]
        return list(self.client.hmget(self.keys(run_id).results, names))

    def set_params(self, run_id: str, definition: Definition, stage: int, params: str) -> None:
        """Keep the params a stage begins with, and those of the one before it no longer, but for those of the start:
        the params of the run are told from them."""
        results = self.keys(run_id).results
        # No transaction, because a cluster's client lacks it before redis-py 6.2.
        pipe = self.client.pipeline(transaction=False)
        pipe.hset(results, f"stage:{stage}", params)
        if stage > 1:
            pipe.hdel(results, f"stage:{stage - 1}")
        pipe.pexpire(results, _keep_ms(definition))
        pipe.execute()

    # -- the sweeper --------------------------------------------------------------------------------------------------

    def check(self, run_id: str) -> Look:
        """As ``pipeline/check.lua`` says."""
        word, outbox, rows, entry, resumed = self._run("pipeline/check", run_id, OUTBOX_GRACE_MS, REMEMBER_MS)
        running = [
            Running(Ref(run_id, step, -1, round_, attempt, text(token)), text(task_id), bool(suspect))
            for step, round_, token, task_id, attempt, suspect in rows
        ]
        return Look(text(word), _outbox(outbox), running, text(entry), turn(run_id, int(resumed)))

    def lost(self, ref: Ref, *, lives: bool = False) -> str:
        """No worker renews a step, or it ``lives`` after all: a word of ``pipeline/lost.lua``."""
        what = (ref.step, ref.round, ref.token, SUSPICION_MS, MAX_DEATHS, int(lives))
        return text(self._run("pipeline/lost", ref.run, *what))


def _keep_ms(definition: Definition) -> int:
    return max(round(definition.ttl * 1000), KEEP_MS)


def _outbox(flat: Sequence[Any]) -> Outbox:
    items: Outbox = {}
    for step, value in zip(flat[::2], flat[1::2], strict=True):
        round_, _, attempt = text(value).partition(".")
        items[int(step)] = (int(round_), int(attempt))
    return dict(sorted(items.items()))


def store_of(app: Celery) -> PipelineStore:
    """That of an app in this process; raises ConfigurationError if its settings are wrong, or name no Redis."""
    return of_process(app, PipelineStore)
