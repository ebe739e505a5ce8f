"""What the result backend of an app tells of runs: so something is known where no worker records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from celery import Celery
from celery.utils.log import get_logger

from ..errors import describe, hide_passwords, storable, text_of
from ..instants import told_ms
from ..setting_checks import has_results
from ..storage.stored import chunks
from .attempt import ERROR_BYTES
from .run import Outcome

logger = get_logger(f"celery.{__name__}")

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

#: Results that are fetched in one command: a task may return megabytes.
_TOGETHER = 20


def results_of(app: Celery, task_ids: Sequence[str]) -> dict[str | None, dict[str, Any]]:
    """What the result backend tells of these tasks: id -> the fields of :class:`~redbeat_lite.Run` that it knows.

    One that is away or raises anything else tells nothing more, which is logged, nor does a result that cannot be read.
    """
    found: dict[str | None, dict[str, Any]] = {}
    try:
        if task_ids and has_results(app):
            found.update((task_id, told) for task_id, told, _ in asked(app.backend, task_ids))
    except Exception as exc:  # noqa: BLE001 - each kind of backend raises what its own library does
        logger.warning("the result backend cannot tell what became of runs: %s", text_of(exc))
    return found


def asked(backend: Any, task_ids: Sequence[str]) -> Iterator[tuple[str, dict[str, Any], int | None]]:
    """The tasks of which a result backend knows something: id, the same fields, and when it ended (epoch ms).

    One that is away raises what its own library does.
    """
    for task_id, meta in _metas(backend, task_ids):
        if told := _told(meta):
            ended = None
            with suppress(AttributeError, ValueError):  # whatever a backend makes of it
                ended = told_ms(meta.get("date_done"))
            yield task_id, told, ended


def _metas(backend: Any, task_ids: Sequence[str]) -> Iterator[tuple[str, Any]]:
    from celery.backends.base import BaseKeyValueStoreBackend

    if not isinstance(backend, BaseKeyValueStoreBackend) or type(backend).mget is BaseKeyValueStoreBackend.mget:
        yield from ((task_id, backend.get_task_meta(task_id)) for task_id in task_ids)
        return
    for chunk in chunks(task_ids, _TOGETHER):
        # Decoded by hand: Celery's own way waits for results, and makes exceptions of classes that we need not have.
        for task_id, found in zip(chunk, backend.mget([*map(backend.get_key_for_task, chunk)]), strict=True):
            with suppress(Exception):  # of whatever a serializer raises: one result says nothing of the others
                yield task_id, backend.decode(found) if found else None


def _told(meta: Any) -> dict[str, Any] | None:
    if not isinstance(meta, Mapping):
        return None
    state, result = str(meta.get("status")), meta.get("result")
    outcome = _OUTCOMES.get(state, "running")
    if outcome is None:
        return None
    error = _error(result) if outcome in ("failed", "retrying", "revoked", "rejected") else None
    if outcome == "revoked":
        # Celery has one state for both.
        return {"outcome": "expired" if error == "TaskRevokedError: expired" else "revoked"}
    worker = meta.get("worker") or (result.get("hostname") if state == "STARTED" and isinstance(result, dict) else None)
    retries = meta.get("retries")
    attempts = 1 + (retries if type(retries) is int else 0)
    return {"outcome": outcome, "worker": worker and str(worker), "error": error, "attempts": attempts}


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
