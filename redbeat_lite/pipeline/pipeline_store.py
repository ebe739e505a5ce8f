"""Pipelines in Redis: the index of runs, and one method per script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from celery import Celery

from .._base.json_values import dumps
from .._base.lazy import of_process
from ..once.lock_client import LockClient
from ..runs.run_store import RunStore
from ..store.connections import retry_for
from ..store.redis_values import server_ms, text, text_of_hash, text_or_none, texts
from ..store.scripts import Scripts
from .definition import MAX_STEPS, Definition, decode_cached
from .pipeline_keys import RunKeys, ended_key, index_key, run_of, turns_key

#: ms for which Redis keeps a run that nobody reads or changes. A longer ttl of the run prevails.
KEEP_MS = 7 * 86_400_000

#: ms for which the id of a run stays known after its record has expired.
REMEMBER_MS = 90 * 86_400_000

#: Seconds for which a write is retried while the server does not answer, so that a restart of the
#: server loses no outcome of a body. If an attempt was made but its reply was lost, the script of
#: the next attempt recognises that, and changes nothing.
_PATIENCE = 30.0

#: How often a step may lose its worker. A step that kills five workers would kill the sixth, too.
MAX_DEATHS = 5

#: Maximum number of ms until a message that no worker has begun is published again. If the first
#: message was not lost, a worker drops the second one as a copy.
RESEND_MAX_MS = 3_600_000

#: Time in ms that a process gets to publish an outbox that it has filled. After this time, the
#: sweeper publishes it.
OUTBOX_GRACE_MS = 3_000

#: Milliseconds from the first suspicion until a worker counts as dead. The time between two signs
#: of life of its step is added.
SUSPICION_MS = 2_000

#: Maximum number of ended runs in the index. The latest are kept.
MAX_ENDED = 10_000


@dataclass(frozen=True, slots=True)
class Ref:
    """One copy of one step's message.

    Parameters:
        step: number of the step, from 0.
        round: how often the step was started again.
        attempt: number of Celery's retry, from 0.
        token: token of the delivery; empty before a worker has got the message.
    """

    run: str
    step: int
    round: int = 0
    attempt: int = 0
    token: str = ""


class Completed(NamedTuple):
    """Reply of ``pipeline/complete.lua``.

    Parameters:
        word: ``"done"``; ``"again"``: the end had been recorded before; ``"stale"``: it is the end
            of another copy, round or attempt; ``"gone"``: there is no such run.
        state: state of the run.
        outbox: steps to publish now.
        revoke: ids of running tasks to kill.
    """

    word: str
    state: str
    outbox: list[Ref]
    revoke: list[str]


class Running(NamedTuple):
    """A step that its record shows as running.

    Parameters:
        suspect: whether an earlier check saw no sign of life of it.
    """

    ref: Ref
    task_id: str
    suspect: bool


class Check(NamedTuple):
    """Reply of ``pipeline/check.lua``, by which the sweeper checks a run.

    Parameters:
        verdict: ``"gone"`` (no such run), ``"over"`` (it has ended), ``"wait"`` (it waits for its
            turn) or ``"run"``.
        outbox: steps to publish.
        running: steps that the record shows as running. If the run is over, they must be killed.
    """

    verdict: str
    outbox: list[Ref]
    running: list[Running]


# Seconds within which the server must create a run. After that, the sweeper checks the run, and
# takes it off the list if it does not exist.
_CREATION = 10.0


class PipelineStore:
    """The runs of one app. Get it with :func:`store_of`."""

    def __init__(self, app: Celery) -> None:
        self.app = app
        locks = LockClient.of(app)
        self._prefix = locks.settings.key_prefix
        lease = locks.settings.once_lease
        self.guards = locks.store
        self.client = locks.store.client
        #: Keys of two lists of run ids: unended runs by the time of their next check, and ended
        #: runs by the time of their end.
        self._open = index_key(self._prefix)
        self._ended = ended_key(self._prefix)
        #: Seconds between two checks of one run by the sweeper.
        self.check_period = min(max(lease / 2, 0.5), 10.0)
        #: Milliseconds after which a step that no worker has begun is published a second time.
        self.resend_ms = round(1000 * max(lease, 1.0))
        self.runs = RunStore(self.client, self._prefix)
        self._scripts = Scripts(self.client)

    def keys(self, run_id: str) -> RunKeys:
        """Return the keys of a run."""
        return RunKeys.of(self._prefix, run_id)

    def _run(self, script: str, run_id: str, *sources: object, **values: Any) -> Any:
        """Run a script with the keys of a run and these arguments, and return its reply."""
        return self._scripts.run(script, self.keys(run_id), *sources, **values)

    def _run_patiently(self, script: str, ref: Ref, **values: Any) -> Any:
        """Run a script, and retry it for ``_PATIENCE`` seconds while the server does not answer."""
        return retry_for(lambda: self._run(script, ref.run, ref, **values), _PATIENCE)

    # -- the indexes of runs -----------------------------------------------------------------------

    def check_later(self, run_id: str, seconds: float | None = None) -> int:
        """Have the sweeper check a run later, and return the time of that check in epoch ms.

        This also adds the run to the list of unended runs.

        Parameters:
            seconds: time from now until the check; ``None``: one period.
        """
        if seconds is None:
            seconds = self.check_period
        instant = server_ms(self.client) + round(1000 * seconds)
        self.client.zadd(self._open, {run_id: instant})
        return instant

    def due_runs(self, limit: int) -> list[str]:
        """Return the ids of at most ``limit`` runs that the sweeper must check now."""
        now = server_ms(self.client)
        return texts(self.client.zrangebyscore(self._open, "-inf", now, start=0, num=limit))

    def move_to_ended(self, run_id: str) -> None:
        """Move a run from the list of unended runs to that of ended runs, ordered by their ends.

        A run that is resumed later stays in the list of ended runs. Then it is in both lists.
        """
        pipe = self.client.pipeline(transaction=False)
        pipe.zadd(self._ended, {run_id: server_ms(self.client)})
        # Remove all but the latest MAX_ENDED runs.
        pipe.zremrangebyrank(self._ended, 0, -MAX_ENDED - 1)
        pipe.zrem(self._open, run_id)
        pipe.execute()

    def forget(self, run_id: str) -> None:
        """Remove a run that does not exist from the list of unended runs."""
        self.client.zrem(self._open, run_id)

    def latest_runs(self, limit: int) -> list[str]:
        """Return the ids of up to ``limit`` unended runs, and of up to ``limit`` latest ended."""
        pipe = self.client.pipeline(transaction=False)
        pipe.zrange(self._open, 0, limit - 1)
        pipe.zrevrange(self._ended, 0, limit - 1)
        unended, ended = pipe.execute()
        # A run that is being moved, or was resumed, is in both lists, so drop duplicates.
        return list(dict.fromkeys(texts([*unended, *ended])))

    # -- one run -----------------------------------------------------------------------------------

    def start(
        self, run_id: str, definition: Definition, params: str, entry: str = "", attempt: str = ""
    ) -> tuple[str, list[Ref]]:
        """Create a run.

        Parameters:
            params: params of the first stage, as JSON.
            entry: name of the entry that starts the run; empty: none.
            attempt: JSON of the attempt (:class:`redbeat_lite.entries.run.Attempt`) of the task
                that starts the run; empty if that attempt is not recorded.

        Returns:
            ``"run"``, ``"wait"`` (for its turn), ``"again"`` (it existed) or ``"gone"`` (it has
            ended, and its record has expired); and the steps to publish.

        Raises:
            TimeoutError: the call came to the server so late that no sweeper would find the run.
        """
        # The params have a field of their own, so that publishing does not read them.
        encoded = definition.but(params={}).encode()
        # Put the run on the sweeper's list before it exists. If this process dies right after the
        # script, the sweeper finds the run there. At ``until_ms`` a sweeper that finds no run takes
        # it off the list, so the server must not create the run after that.
        until_ms = self.check_later(run_id, _CREATION)
        # Only runs of one entry can overlap, so only they wait for their turn, or are left out.
        joins_line = bool(entry) and definition.overlap != "allow"
        word, outbox = self._run(
            "pipeline/start",
            run_id,
            definition=encoded,
            sizes=",".join(str(len(stage)) for stage in definition.stages),
            params=params,
            ttl_ms=round(definition.ttl * 1000),
            keep_ms=_keep_ms(definition),
            revoke_siblings=int(definition.revoke_siblings),
            # Without a limit, all steps of a stage may be published.
            most=definition.at_once or MAX_STEPS,
            deadline_ms="" if definition.deadline is None else round(definition.deadline * 1000),
            entry=entry,
            attempt=attempt,
            waits=int(joins_line),
            until_ms=until_ms,
        )
        if word == b"late":
            raise TimeoutError(f"pipeline run {run_id}: the server was asked too late to create it")
        if word in (b"run", b"wait"):
            # Put the run on the sweepers' list once more. A sweeper that looked for the run before
            # it was stored may have taken it off the list.
            self.check_later(run_id)
        return text(word), _outbox(run_id, outbox)

    def remove_published(self, published: Sequence[Ref]) -> None:
        """Remove steps of one run from its outbox, now that they are published.

        If no worker begins such a step, the sweeper publishes it again: first after ``resend_ms``,
        then after twice as long each time, up to ``RESEND_MAX_MS``.
        """
        # If a step is in the outbox with another round or attempt by now, the script keeps it.
        items: list[Any] = []
        for ref in published:
            items += (ref.step, f"{ref.round}.{ref.attempt}")
        self._run(
            "pipeline/sent",
            published[0].run,
            resend_ms=self.resend_ms,
            resend_max_ms=RESEND_MAX_MS,
            published=items,
        )

    def begin(
        self, ref: Ref, task_id: str, *, stage: int, again: bool, worker: str, renew_ms: int
    ) -> tuple[str, bytes]:
        """Begin a step if it may run.

        Parameters:
            stage: stage of the step by its message. The run must be at this stage.
            again: whether the step may run again after its worker died.
            renew_ms: ms between two signs of life of the step.

        Returns:
            a word and a text. ``"run"``: the step runs now; the text is its params as JSON.
            ``"over"``: the run has ended; the text is its state. ``"done"``: the step has ended;
            the text is its state. ``"lost"``: another copy of the step died, and the step may not
            run again; the text is the token of that copy. With these words, the text is empty:
            ``"stale"`` (the message is of another round or stage), ``"gone"`` (there is no such
            run) and ``"dead"`` (workers of the step died too often).
        """
        word, answer_text = self._run_patiently(
            "pipeline/begin",
            ref,
            id=task_id,
            stage=stage,
            again=int(again),
            worker=worker,
            deaths=MAX_DEATHS,
            renew_ms=renew_ms,
        )
        return text(word), answer_text

    def complete(self, ref: Ref, outcome: str, result: str) -> Completed:
        """Record the end of a step.

        Parameters:
            outcome: ``"SUCCEEDED"``, ``"FAILED"`` or ``"REVOKED"``.
            result: the step's result as JSON, or the reason of its failure.
        """
        word, state, outbox, revoke = self._run_patiently(
            "pipeline/complete",
            ref,
            outcome=outcome,
            result=result,
            remember_ms=REMEMBER_MS,
        )
        return Completed(text(word), text(state), _outbox(ref.run, outbox), texts(revoke))

    def progress(self, ref: Ref, percent: float, note: str) -> None:
        """Record the progress of a step."""
        fields = dumps({"percent": percent, "note": note})
        self._run("pipeline/change", ref.run, ref, fields=fields)

    def await_attempt(self, ref: Ref, attempt: int, delay_ms: int, *, sent: bool) -> bool:
        """Set a running step back to waiting, because another attempt of it follows.

        Parameters:
            attempt: number of the next attempt.
            delay_ms: ms until the next attempt is due.
            sent: whether its message was sent. Otherwise the sweeper sends it when it is due.

        Returns:
            ``False`` if another copy of the step has taken over, so that nothing was changed.
        """
        # If the step has not begun after this time, the sweeper sends its message. If a message was
        # sent, the time is ``resend_ms`` longer, so that the sweeper sends another one only if the
        # first is lost.
        publish_ms = delay_ms + self.resend_ms if sent else delay_ms

        def wait() -> bool:
            """Write the state; retry_for() may repeat it, and ``due`` counts from the last call."""
            fields = {
                "state": "WAITING",
                "attempt": attempt,
                # Count of the messages of this attempt so far. Each message doubles the pause
                # before the next one.
                "tries": int(sent),
                "due": server_ms(self.client) + publish_ms,
            }
            return bool(self._run("pipeline/change", ref.run, ref, fields=dumps(fields)))

        return retry_for(wait, _PATIENCE)

    def start_waiting(self, turn: str) -> tuple[str, list[Ref]]:
        """Start the run that is first in a waiting line, if it still waits.

        Parameters:
            turn: member for the run in the line: ``<how often it was resumed>:<run id>``.

        Returns:
            ``"run"`` if it runs now, or ran already; ``"over"`` if this member is out of date: the
            run has ended, or was resumed since, which gave it a new member. And the steps to
            publish, which are none if the run ran already.
        """
        resumed, _, run_id = turn.partition(":")
        word, outbox = self._run("pipeline/go", run_id, resumed=resumed)
        return text(word), _outbox(run_id, outbox)

    def resume(self, run_id: str, resumed: int, running: Sequence[str]) -> tuple[str, list[Ref]]:
        """Resume a run that has ended.

        Parameters:
            resumed: how often the run had been resumed when the caller read it.
            running: ids of the tasks of the run that still run after its end. Their steps are not
                started again.

        Returns:
            the run's new state, empty if another process has resumed it first; and the steps to
            publish.
        """
        # Put the run on the sweeper's list before it is resumed. If this process dies right after
        # the script, the sweeper finds the run there.
        self.check_later(run_id)
        state, outbox = self._run(
            "pipeline/resume", run_id, remember_ms=REMEMBER_MS, resumed=resumed, ids=running
        )
        # Put it on the list again. A sweeper that looked before the resume may have taken it off.
        self.check_later(run_id)
        return text(state), _outbox(run_id, outbox)

    def change_line(
        self, entry: str, *, add: str = "", remove: str = "", most: int = 0
    ) -> tuple[bool, str]:
        """Add one run to the waiting line of an entry, remove another, and return the first one.

        The runs are named by their members of the line: ``<resumed>:<run id>``.

        Parameters:
            add: run to add at the end, if the line has room; empty: none.
            remove: run to remove; empty: none.
            most: number of runs for which the line has room.

        Returns:
            whether the run to add is in the line now, and the first run of the line, empty if the
            line is empty.
        """
        joined, first = self._scripts.run(
            "pipeline/turn",
            line=turns_key(self._prefix, entry),
            comes=add,
            leaves=remove,
            most=most,
            keep_ms=REMEMBER_MS,
        )
        return bool(joined), text(first)

    def first_in_line(self, entry: str) -> str | None:
        """Return the id of the first run in an entry's waiting line; ``None`` if it is empty."""
        turns = self.client.zrange(turns_key(self._prefix, entry), 0, 0)
        return run_of(text(turns[0])) if turns else None

    def read_fields(self, run_id: str, *names: str) -> list[str | None]:
        """Return these fields of a run's record, ``None`` for a missing one."""
        return [text_or_none(value) for value in self.client.hmget(self.keys(run_id).run, names)]

    def cancel(
        self, run_id: str, why: str = "", *, terminate: bool = False
    ) -> tuple[int, list[str]]:
        """End a run before its time.

        Parameters:
            why: reason for which a run that waits for its turn is left out. If the run does not
                wait any more, it is not ended. Empty: the run is ended in any state.
            terminate: whether its running steps are to be killed.

        Returns:
            1 if this call ended the run, 0 if it had ended, -1 if it does not exist; and the ids of
            its running tasks.
        """
        result, running = self._run(
            "pipeline/cancel",
            run_id,
            remember_ms=REMEMBER_MS,
            why=why,
            terminate=int(terminate),
        )
        return int(result), texts(running)

    def read(self, run_id: str) -> tuple[dict[str, str], dict[str, str], str]:
        """Read what is stored of a run.

        Returns:
            the fields of its record, which are empty if there is no record; number of a published
            step -> JSON of that step; and the final state of the run, which is empty before its
            first end and outlives the record.
        """
        keys = self.keys(run_id)
        pipe = self.client.pipeline(transaction=False)
        # Read the run before its steps. If both change in between, only the steps show the change,
        # so no step is older than the run.
        pipe.hgetall(keys.run)
        pipe.hgetall(keys.steps)
        pipe.get(keys.gone)
        run, steps, gone = pipe.execute()
        return text_of_hash(run), text_of_hash(steps), text(gone or b"")

    def definition(self, run_id: str) -> Definition | None:
        """Return the definition of a run, ``None`` if the run is gone."""
        stored = self.client.hget(self.keys(run_id).run, "definition")
        return None if stored is None else decode_cached(stored)

    def results(
        self, run_id: str, stages: Iterable[int], steps: Iterable[int]
    ) -> list[bytes | None]:
        """Return, as JSON, the params at the start of each stage, and then the result of each step.

        ``None`` stands for params or a result that are not stored.

        Parameters:
            stages, steps: numbers of the stages and the steps, from 0.
        """
        names = [*(f"stage:{stage}" for stage in stages), *map(str, steps)]
        return list(self.client.hmget(self.keys(run_id).results, names))

    def set_params(self, run_id: str, definition: Definition, stage: int, params: str) -> None:
        """Store the params at the start of a stage, and delete the params of the stage before.

        The params of the first stage stay, because the params of the whole run start from them.
        """
        key = self.keys(run_id).results
        # No transaction, because a cluster's client lacks it before redis-py 6.2.
        pipe = self.client.pipeline(transaction=False)
        pipe.hset(key, f"stage:{stage}", params)
        if stage > 1:  # The stage before is not the first one.
            pipe.hdel(key, f"stage:{stage - 1}")
        pipe.pexpire(key, _keep_ms(definition))
        pipe.execute()

    def check(self, run_id: str) -> Check:
        """Check a run for the sweeper, and return what the sweeper has to do.

        A run whose deadline has passed is ended. Steps that no worker has begun in time are put
        into the outbox again, because their messages must be lost.
        """
        verdict, outbox, rows = self._run(
            "pipeline/check", run_id, ripe_ms=OUTBOX_GRACE_MS, remember_ms=REMEMBER_MS
        )
        running = []
        for step, round_, token, task_id, attempt, suspect in rows:
            ref = Ref(run_id, step, round_, attempt, text(token))
            running.append(Running(ref, text(task_id), bool(suspect)))
        return Check(text(verdict), _outbox(run_id, outbox), running)

    def withdraw_report(self, ref: Ref) -> None:
        """Withdraw the report that no worker renews a step, because a worker does after all."""
        # Every change of a step counts as a sign of life. This change sets no field.
        self._run("pipeline/change", ref.run, ref, fields="{}")

    def report(self, ref: Ref) -> str:
        """Report a step that no worker renews.

        Returns:
            ``"suspect"`` at the first report, and as long as its worker may still renew it; then
            ``"again"``: the step is in the outbox, in its next round; or ``"dead"``: it may not run
            again. ``"stale"`` if the step is in another state or round by now.
        """
        word = self._run(
            "pipeline/lost",
            ref.run,
            ref,
            patience_ms=SUSPICION_MS,
            deaths=MAX_DEATHS,
        )
        return text(word)


def _keep_ms(definition: Definition) -> int:
    """Return for how many ms Redis keeps a run that nobody reads or changes."""
    return max(round(definition.ttl * 1000), KEEP_MS)


def _outbox(run_id: str, flat: Sequence[Any]) -> list[Ref]:
    """Return the steps of an outbox, in order.

    Parameters:
        flat: list of a script: number of a step, its ``<round>.<attempt>``, and so on.
    """
    refs = []
    for step, value in zip(flat[::2], flat[1::2], strict=True):
        round_, _, attempt = text(value).partition(".")
        refs.append(Ref(run_id, int(step), int(round_), int(attempt)))
    return sorted(refs, key=lambda ref: ref.step)


def store_of(app: Celery) -> PipelineStore:
    """Return the store of an app in this process.

    Raises:
        ConfigurationError: its settings are wrong, or name no Redis.
    """
    return of_process(app, PipelineStore)
