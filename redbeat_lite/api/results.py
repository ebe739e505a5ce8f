"""What the result backend of an app tells of runs: so something is known where no worker records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from celery.utils.log import get_logger

from ..errors import describe, hide_passwords, storable, text_of
from ..runs.attempt import ERROR_BYTES
from ..runs.run import Outcome

if TYPE_CHECKING:
    from celery import Celery

logger = get_logger(__name__)

#: Celery's states. A state of the task's own says that it runs; one that is missing here, nothing.
_OUTCOMES: dict[str, Outcome | None] = {
    "PENDING": None,
    "RECEIVED": None,
    "STARTED": "running",
    "RETRY": "retrying",
    "SUCCESS": "succeeded",
    "FAILURE": "failed",
    "REVOKED": "revoked",
    "REJECTED": "rejected",
    "IGNORED": None,
}


class Told(NamedTuple):
    """What the result backend tells of one run.

    Parameters:
        outcome: what became of it.
        worker: node name; ``None`` where it does not say, as with results that are not extended.
        error: what it failed with.
        attempts: how many times it began, as far as it says.
    """

    outcome: Outcome
    worker: str | None
    error: str | None
    attempts: int


def has_results(app: Celery) -> bool:
    """Whether the app has a result backend that tells of tasks which another process has sent."""
    # Here, because most who use Schedules never ask, and these load slowly.
    from celery.backends.base import DisabledBackend
    from celery.backends.rpc import RPCBackend

    try:
        # Those of rpc:// are messages for the one who has sent the task, and who looks for them takes them away.
        return not isinstance(app.backend, (DisabledBackend, RPCBackend))
    except Exception:  # noqa: BLE001 - there is one, and it raises again where it is used
        return True


def results_of(app: Celery, task_ids: Sequence[str]) -> dict[str, Told]:
    """What the result backend tells of these tasks, by id; in one round trip where it can.

    One that is away or raises anything else tells nothing, which is logged.
    """
    try:
        if not task_ids or not has_results(app):
            return {}
        metas = _metas(app.backend, task_ids)
        return {task_id: told for task_id, meta in zip(task_ids, metas, strict=True) if (told := _told(meta))}
    except Exception as exc:  # noqa: BLE001 - each kind of backend raises what its own library does
        logger.warning("the result backend cannot tell what became of runs: %s", text_of(exc))
        return {}


def _metas(backend: Any, task_ids: Sequence[str]) -> Iterator[Any]:
    from celery.backends.base import BaseKeyValueStoreBackend

    if isinstance(backend, BaseKeyValueStoreBackend) and type(backend).mget is not BaseKeyValueStoreBackend.mget:
        # Decoded by hand: Celery's own way waits for results, and makes exceptions of classes that we need not have.
        found = backend.mget([backend.get_key_for_task(task_id) for task_id in task_ids])
        return (backend.decode(each) if each else None for each in found)
    return (backend.get_task_meta(task_id) for task_id in task_ids)


def _told(meta: Any) -> Told | None:
    if not isinstance(meta, Mapping):
        return None
    state, result = str(meta.get("status")), meta.get("result")
    outcome = _OUTCOMES.get(state, "running")
    if outcome is None:
        return None
    error = _error(result) if outcome in ("failed", "retrying", "revoked", "rejected") else None
    if outcome == "revoked":
        # Celery has one state for both.
        return Told("expired" if error == "TaskRevokedError: expired" else "revoked", None, None, 0)
    worker = meta.get("worker") or (result.get("hostname") if state == "STARTED" and isinstance(result, dict) else None)
    retries = meta.get("retries")
    return Told(outcome, None if worker is None else str(worker), error, 1 + (retries if type(retries) is int else 0))


def _error(result: Any) -> str | None:
    """An exception, or the JSON that Celery makes of one."""
    if isinstance(result, Mapping):
        said = result.get("exc_message")
        words = ", ".join(map(str, said)) if isinstance(said, (list, tuple)) else str(said or "")
        kind = str(result.get("exc_type"))
        text = hide_passwords(storable(f"{kind}: {words}" if words else kind))
    elif isinstance(result, BaseException):
        text = describe(result)
    else:
        return None
    return text.encode()[:ERROR_BYTES].decode(errors="ignore")
