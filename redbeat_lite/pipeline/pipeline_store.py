"""Pipelines in Redis: the index of runs, and one method per script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from celery import Celery

from .._base.json_values import dumps
from .._base.lazy import of_process
from ..once.lock_client import LockClient
from ..runs.run_store import RunStore
from ..store.connections import retry_for
from ..store.redis_values import server_ms, text, text_of_hash, texts
from ..store.scripts import Scripts
from .definition import MAX_STEPS, Definition, Ref, decode_cached
from .pipeline_keys import RunKeys, ended_key, index_key, turns_key

#: ms for which the waiting line of an entry is kept after its last change.
_KEEP_LINE_MS = 90 * 86_400_000

#: Seconds for which a write is retried while the server does not answer, so that a restart of the
#: server loses no outcome of a body. If an attempt was made but its reply was lost, the script of
#: the next attempt recognises that, and changes nothing.
_PATIENCE = 30.0

#: Maximum number of ms until a message that no worker has begun is published again. If the first
#: message was not lost, a worker drops the second one as a copy.
RESEND_MAX_MS = 3_600_000

#: Milliseconds from the first suspicion until a worker counts as dead. The time between two signs
#: of life of its step is added.
SUSPICION_MS = 2_000

#: Maximum number of ended runs in the index. The latest are kept.
MAX_ENDED = 10_000


class Check(NamedTuple):
    """A run as ``pipeline/check.lua`` has seen it.

    Parameters:
        state: state of the run; empty if it does not exist.
        due: steps to publish.
        running: steps that the record shows as running; of a run that has ended, only those that
            must be killed.
    """

    state: str
    due: list[Ref]
    running: list[Ref]


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
        self.client.zadd(self._ended, {run_id: server_ms(self.client)})
        # Remove all but the latest MAX_ENDED runs.
        self.client.zremrangebyrank(self._ended, 0, -MAX_ENDED - 1)
        self.client.zrem(self._open, run_id)

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
    ) -> str:
        """Create a run that waits for its turn; see :meth:`start_waiting`.

        Parameters:
            params: params of the first stage, as JSON.
            entry: name of the entry that starts the run; empty: none.
            attempt: JSON of the attempt (:class:`redbeat_lite.entries.run.Attempt`) of the task
                that starts the run; empty if that attempt is not recorded.

        Returns:
            the state of the run, which may have existed before; ``"gone"`` if it has ended, and its
            record has expired.

        Raises:
            TimeoutError: the call came to the server so late that no sweeper would find the run.
        """
        # The params have a field of their own, so that publishing does not read them.
        encoded = definition.but(params={}).encode()
        # Put the run on the sweeper's list before it exists. If this process dies right after the
        # script, the sweeper finds the run there. At ``until_ms`` a sweeper that finds no run takes
        # it off the list, so the server must not create the run after that.
        until_ms = self.check_later(run_id, _CREATION)
        word = self._run(
            "pipeline/start",
            run_id,
            definition=encoded,
            sizes=",".join(str(len(names)) for names in definition.names()),
            params=params,
            ttl_ms=round(definition.ttl * 1000),
            revoke_siblings=int(definition.revoke_siblings),
            # Without a limit, all steps of a stage may be published.
            most=definition.at_once or MAX_STEPS,
            deadline_ms="" if definition.deadline is None else round(definition.deadline * 1000),
            entry=entry,
            attempt=attempt,
            overlap=definition.overlap,
            until_ms=until_ms,
        )
        if word == b"late":
            raise TimeoutError(f"pipeline run {run_id}: the server was asked too late to create it")
        if word == b"WAITING":
            # Put the run on the sweepers' list once more. A sweeper that looked for the run before
            # it was stored may have taken it off the list.
            self.check_later(run_id)
        return text(word)

    def note_published(self, ref: Ref) -> None:
        """Note that a step is published.

        If no worker begins it, the sweeper publishes it again: first after ``resend_ms``, then
        after twice as long each time, up to ``RESEND_MAX_MS``.
        """
        # If the step is in another round or attempt by now, the script does not change it.
        self._run(
            "pipeline/sent",
            ref.run,
            ref,
            resend_ms=self.resend_ms,
            resend_max_ms=RESEND_MAX_MS,
        )

    def begin(self, ref: Ref, *, again: bool, worker: str, renew_ms: int) -> tuple[str, bytes]:
        """Begin a step if it may run.

        Parameters:
            again: whether the step may run again after its worker died.
            renew_ms: ms between two signs of life of the step.

        Returns:
            a word and a text. ``"run"``: the step runs now; the text is its params as JSON.
            ``"over"``: the run has ended; the text is its state. ``"lost"``: another copy of the
            step died, and the step may not run again; the text is the token of that copy.
            ``"stale"``: the step has ended, or the message is of another round or stage; the text
            is empty.
        """
        word, answer_text = self._run_patiently(
            "pipeline/begin", ref, again=int(again), worker=worker, renew_ms=renew_ms
        )
        return text(word), answer_text

    def complete(self, ref: Ref, outcome: str, result: str) -> tuple[str, list[Ref]]:
        """Record the end of a step.

        Parameters:
            outcome: ``"SUCCEEDED"``, ``"FAILED"`` or ``"REVOKED"``.
            result: the step's result as JSON, or the reason of its failure.

        Returns:
            the state of the run, and the steps to publish now. Other words than a state:
            ``"again"`` (the end had been recorded before), ``"over"`` (the run had ended before),
            ``"stale"`` (it is the end of another copy, round or attempt), ``"gone"`` (there is no
            such run).
        """
        word, due = self._run_patiently("pipeline/complete", ref, outcome=outcome, result=result)
        return text(word), _refs(ref.run, due)

    def progress(self, ref: Ref, percent: float, note: str) -> None:
        """Record the progress of a step."""
        fields = dumps({"percent": percent, "note": note})
        self._run("pipeline/change", ref.run, ref, fields=fields, publish_ms=None)

    def await_attempt(self, ref: Ref, attempt: int, delay_ms: int, *, sent: bool) -> None:
        """Set a running step back to waiting, because another attempt of it follows.

        If another copy of the step has taken over, nothing is changed.

        Parameters:
            attempt: number of the next attempt.
            delay_ms: ms until the next attempt is due.
            sent: whether its message was sent. Otherwise the sweeper sends it when it is due.
        """
        fields = {
            "state": "WAITING",
            "attempt": attempt,
            # Count of the messages of this attempt so far. Each message doubles the pause before
            # the next one.
            "tries": int(sent),
        }
        # If the step has not begun after this time, the sweeper sends its message. If a message was
        # sent, the time is ``resend_ms`` longer, so that the sweeper sends another one only if the
        # first is lost.
        publish_ms = delay_ms + self.resend_ms if sent else delay_ms
        self._run_patiently("pipeline/change", ref, fields=dumps(fields), publish_ms=publish_ms)

    def start_waiting(self, turn: str) -> tuple[str, list[Ref]]:
        """Start a run whose turn has come, if it still waits.

        Parameters:
            turn: member for the run in its line: ``<how often it was resumed>:<run id>``.

        Returns:
            the state of the run, and its steps to publish. The state is empty if the run was
            resumed since, which gave it a new member, or does not exist.
        """
        resumed, _, run_id = turn.partition(":")
        state, due = self._run("pipeline/go", run_id, resumed=resumed)
        return text(state), _refs(run_id, due)

    def resume(self, run_id: str, resumed: int, alive: Sequence[int]) -> bool:
        """Have a run that has ended wait for its turn.

        Parameters:
            resumed: how often the run had been resumed when the caller read it.
            alive: numbers of the steps that still run after the end of the run. They are not
                started again.

        Returns:
            ``False`` if another process has resumed it first, or its steps are lost.
        """
        # Put the run on the sweeper's list before it is resumed. If this process dies right after
        # the script, the sweeper finds the run there.
        self.check_later(run_id)
        is_resumed = self._run("pipeline/resume", run_id, resumed=resumed, alive=alive)
        # Put it on the list again. A sweeper that looked before the resume may have taken it off.
        self.check_later(run_id)
        return bool(is_resumed)

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
            keep_ms=_KEEP_LINE_MS,
        )
        return bool(joined), text(first)

    def read_fields(self, run_id: str, *names: str) -> dict[str, str]:
        """Return these fields of a run's record; a missing one is empty."""
        values = self.client.hmget(self.keys(run_id).run, names)
        return {name: text(value or b"") for name, value in zip(names, values, strict=True)}

    def has_steps(self, run_id: str) -> bool:
        """Return whether Redis has the records of a run's steps."""
        return bool(self.client.exists(self.keys(run_id).steps))

    def cancel(self, run_id: str, why: str = "", *, terminate: bool = False) -> int:
        """End a run before its time.

        Parameters:
            why: reason for which a run that waits for its turn is left out. If the run does not
                wait any more, it is not ended. Empty: the run is ended in any state.
            terminate: whether :func:`finish_run` kills its running steps.

        Returns:
            1 if this call ended the run, 0 if it had ended, -1 if it does not exist.
        """
        return int(self._run("pipeline/cancel", run_id, why=why, terminate=int(terminate)))

    def read(self, run_id: str) -> tuple[dict[str, str], dict[str, str]]:
        """Read what is stored of a run.

        Returns:
            the fields of its record, which are empty if there is no record; and number of a
            published step -> JSON of that step.
        """
        keys = self.keys(run_id)
        # Read the run before its steps. If both change in between, only the steps show the change,
        # so no step is older than the run.
        run = self.client.hgetall(keys.run)
        return text_of_hash(run), text_of_hash(self.client.hgetall(keys.steps))

    def has_existed(self, run_id: str) -> bool:
        """Return whether the server remembers that a run of this id has ended."""
        return bool(self.client.exists(self.keys(run_id).gone))

    def definition(self, run_id: str) -> Definition | None:
        """Return the definition of a run, ``None`` if the run is gone."""
        stored = self.client.hget(self.keys(run_id).run, "definition")
        return None if stored is None else decode_cached(stored)

    def results(self, run_id: str, names: Sequence[str]) -> list[bytes | None]:
        """Return params and results of a run as JSON; ``None`` if a value is not stored.

        Parameters:
            names: ``stage:<number>`` for the params at the start of a stage, and the number of a
                step for its result.
        """
        return list(self.client.hmget(self.keys(run_id).results, names))

    def set_params(self, run_id: str, stage: int, params: str) -> None:
        """Store the params at the start of a stage, and delete the params of the stage before.

        The params of the first stage stay, because the params of the whole run start from them.
        """
        key = self.keys(run_id).results
        self.client.hset(key, f"stage:{stage}", params)
        if stage > 1:  # The stage before is not the first one.
            self.client.hdel(key, f"stage:{stage - 1}")

    def check(self, run_id: str) -> Check:
        """Check a run, and return what is left to be done for it.

        A run whose deadline has passed is ended. The steps to publish are those that were never
        published, and those that no worker has begun in time, so that their messages must be lost.
        """
        state, due, running = self._run("pipeline/check", run_id)
        return Check(text(state), _refs(run_id, due), _refs(run_id, running))

    def report(self, ref: Ref, until_ms: float) -> str:
        """Report a step that no worker renews.

        Parameters:
            until_ms: epoch ms at which the guard's record of the step should have been renewed. If
                it was renewed since the last report, this report counts as the first one.

        Returns:
            ``"suspect"`` at the first report, and as long as its worker may still renew it; then
            ``"again"``: the step waits to be published in its next round; or ``"dead"``: it may not
            run again. ``"stale"`` if the step is in another state or round by now.
        """
        return text(
            self._run("pipeline/lost", ref.run, ref, until_ms=until_ms, patience_ms=SUSPICION_MS)
        )


def _refs(run_id: str, rows: Iterable[tuple[int, int, int, bytes]]) -> list[Ref]:
    """Return the steps that a script has listed, with their round, attempt and token."""
    return [
        Ref(run_id, step, round_, attempt, text(token)) for step, round_, attempt, token in rows
    ]


def store_of(app: Celery) -> PipelineStore:
    """Return the store of an app in this process.

    Raises:
        ConfigurationError: its settings are wrong, or name no Redis.
    """
    return of_process(app, PipelineStore)
