"""The worker around an embedded beat, without which the beat has to leave.

``celery worker -B`` runs its beat in a child process. A worker that is told to stop tells that child; one that is
killed cannot, and the child would lead for ever, with old code, and nobody would know of it.
"""

from __future__ import annotations

import os
from typing import Any

import celery.beat
from billiard import current_process
from celery.utils.log import get_logger

logger = get_logger(f"celery.{__name__}")


def is_gone() -> bool:
    """Whether this process is the beat of a worker that runs no more. Never true of ``celery beat``, with ``--detach``
    or without, nor of a beat in a thread."""
    worker = _worker()
    # Not "is it 1 now": whoever adopts the children of the dead may be any process.
    return worker is not None and os.getppid() != worker


def leave_without() -> None:
    """End a beat whose worker is gone, by SystemExit."""
    if is_gone():
        logger.warning("beat: leaving, because the worker that runs this beat is gone (pid %d)", _worker())
        raise SystemExit


def _worker() -> int | None:
    """The process that has started this one to be its beat; ``None`` for any other process."""
    process: Any = current_process()
    # As billiard has noted it before the fork: asked for later, it might be somebody else already. Where Celery names
    # these things otherwise, nobody's worker is ever gone.
    embedded = getattr(celery.beat, "_Process", None)
    return getattr(process, "_parent_pid", None) if type(process) is embedded else None
