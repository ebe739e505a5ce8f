"""Pipelines in Redis: the two lists of runs, and the scripts that several modules call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from celery import Celery

from .._base.json_values import dumps
from .._base.lazy import of_process
from ..once.lock_client import LockClient
from ..runs.run_store import RunStore
from ..store.connections import retry_for
from ..store.redis_values import server_ms, text, text_of_hash
from ..store.scripts import Scripts
from .definition import Ref
from .pipeline_keys import RunKeys, ended_key, index_key, turn, turns_key

#: ms for which the waiting line of an entry is kept after its last change.
_KEEP_LINE_MS = 90 * 86_400_000

#: Seconds for which a write is retried while the server does not answer, so that a restart of the
#: server loses no outcome of a body. If an attempt was made but its reply was lost, the script of
#: the next attempt recognises that, and changes nothing.
PATIENCE = 30.0

#: Maximum number of ended runs in the index. The latest are kept.
MAX_ENDED = 10_000


class Check(NamedTuple):
    """A run as ``pipeline/check.lua`` has seen it.

    Parameters:
        state: state of the run; empty if the run does not exist, or if it was resumed since it
            joined the line in which its turn has come.
        due: steps to publish.
        running: steps that the record shows as running; of a run that has ended, only those that
            must be killed.
    """

    state: str
    due: list[Ref]
    running: list[Ref]


class PipelineStore:
    """The runs of one app. Get it with :func:`store_of`."""

    def __init__(self, app: Celery) -> None:
        self.app = app
        locks = LockClient.of(app)
        self._prefix = locks.settings.key_prefix
        lease = locks.settings.once_lease
        self.guards = locks.store
        self.client = locks.store.client
        #: Keys of two lists: turns of unended runs (see :func:`turn`) by the time of their next
        #: check, and ids of ended runs by the time of their end.
        self.open = index_key(self._prefix)
        self.ended = ended_key(self._prefix)
        #: Seconds between two checks of one run by the sweeper.
        self.check_period = min(lease / 2, 10.0)
        #: Milliseconds after which a step that no worker has begun is published a second time. If
        #: the first message was not lost, a worker drops the second one as a copy.
        self.resend_ms = round(1000 * lease)
        self.runs = RunStore(self.client, self._prefix)
        self._scripts = Scripts(self.client)

    def keys(self, run_id: str) -> RunKeys:
        """Return the keys of a run."""
        return RunKeys.of(self._prefix, run_id)

    def run(self, script: str, run_id: str, *sources: object, **values: Any) -> Any:
        """Run a script with the keys of a run, and return its reply.

        Parameters:
            sources: objects whose attributes are the arguments that ``values`` does not have.
            values: arguments by name.

        Raises:
            TimeoutError: the server was asked too late, and has done nothing.
        """
        reply = self._scripts.run(script, self.keys(run_id), *sources, **values)
        if reply == b"late":
            raise TimeoutError(f"pipeline run {run_id}: the server was asked too late")
        return reply

    def _run_patiently(self, script: str, ref: Ref, **values: Any) -> Any:
        """Run a script, and retry it for ``PATIENCE`` seconds while the server does not answer."""
        return retry_for(lambda: self.run(script, ref.run, ref, **values), PATIENCE)

    # -- the lists of runs -------------------------------------------------------------------------

    def check_later(self, member: str, seconds: float | None = None) -> int:
        """Have the sweeper check a run later, and return the time of that check in epoch ms.

        This also adds the run to the list of unended runs.

        Parameters:
            member: turn of the run, from :func:`turn`.
            seconds: time from now until the check; ``None``: one period.
        """
        if seconds is None:
            seconds = self.check_period
        instant = server_ms(self.client) + round(1000 * seconds)
        self.client.zadd(self.open, {member: instant})
        return instant

    def move_to_ended(self, run_id: str, resumes: int) -> None:
        """Move a run from the list of unended runs to that of ended runs, ordered by their ends.

        A run that was resumed meanwhile stays in the list of unended runs, because a resume adds
        another turn to it. Then the run is in both lists.

        Parameters:
            resumes: how often the run had been resumed when it ended.
        """
        self.client.zadd(self.ended, {run_id: server_ms(self.client)})
        # Remove all but the latest MAX_ENDED runs.
        self.client.zremrangebyrank(self.ended, 0, -MAX_ENDED - 1)
        self.client.zrem(self.open, turn(run_id, resumes))

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
            whether the run to add is in the line now, or without such a run, whether the line has
            room; and the first run of the line, empty if the line is empty.
        """
        has_room, first = self._scripts.run(
            "pipeline/turn",
            line=turns_key(self._prefix, entry),
            add=add,
            remove=remove,
            most=most,
            keep_ms=_KEEP_LINE_MS,
        )
        return bool(has_room), text(first)

    # -- one run -----------------------------------------------------------------------------------

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

    def check(self, run_id: str, turn: str = "") -> Check:
        """Check a run, and return what is left to be done for it.

        If the turn of the run has come, the run begins. If its deadline has passed, the run ends.
        The steps to publish are those that were never published, and those that no worker has begun
        in time, because the messages of these count as lost.

        Parameters:
            turn: how often the run had been resumed when it joined the line in which its turn has
                come; empty: its turn has not come.
        """
        state, due, running = self.run("pipeline/check", run_id, turn=turn)
        return Check(text(state), _refs(run_id, due), _refs(run_id, running))

    def begin(self, ref: Ref, *, again: bool, worker: str, renew_ms: int) -> tuple[str, bytes]:
        """Begin a step if it may run.

        Parameters:
            again: whether the step may run again after its worker died.
            renew_ms: ms between two signs of life of the step.

        Returns:
            a word and a text. ``"run"``: the step runs now; the text is its params as JSON.
            ``"over"``: the run has ended; the text is its state. ``"stale"``: the step has ended,
            the message is of another round or stage, or another copy of the step died and the step
            may not run again; the text is empty.
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
            a word, and the steps that may be published now. ``"next"``: the run goes on or has
            ended, or this end was recorded before. If there are no steps to publish, the caller
            reconciles the run. ``"wait"``: nothing follows before another step ends, or before the
            turn of the run comes. ``"over"``: the run had ended before, or does not exist.
            ``"stale"``: nothing is recorded, because ``ref`` is another copy, round or attempt than
            the server has.
        """
        word, due = self._run_patiently("pipeline/complete", ref, outcome=outcome, result=result)
        return text(word), _refs(ref.run, due)

    def change(self, ref: Ref, due_ms: float | None = None, **fields: Any) -> None:
        """Set fields of a step, if its round, attempt and token are still those of ``ref``.

        Parameters:
            due_ms: ms until the sweeper publishes the step; ``None``: unchanged.
        """
        self.run("pipeline/change", ref.run, ref, fields=dumps(fields), due_ms=due_ms)


def _refs(run_id: str, rows: Iterable[Sequence[Any]]) -> list[Ref]:
    """Return the steps that a script has listed."""
    return [
        Ref(run_id, step, round_, attempt, text(token), tries)
        for step, round_, attempt, token, tries in rows
    ]


def store_of(app: Celery) -> PipelineStore:
    """Return the store of an app in this process.

    Raises:
        ConfigurationError: its settings are wrong, or name no Redis.
    """
    return of_process(app, PipelineStore)
