"""Children of a prefork pool that died, or are about to: their locks are given back as soon as they are gone.

Celery learns of a hard time limit, a revoke or an exit before the child is dead. A lock given back at that moment would
let the next task overlap with the last breaths of this one.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path
from typing import Any

from celery.utils.log import get_logger

from ...errors import text_of
from ...forks import held_off
from .. import fates
from ..fates import Told
from ..hold import Hold
from ..parked_message import DELIVERY
from ..runtime import Runtime
from ..settle import has_succeeded

logger = get_logger(f"celery.{__name__}")

#: Seconds between two looks at a dying child.
_LOOK = 0.02

#: Seconds after which a child that does not die is left to its lease.
_GIVE_UP = 60.0

#: Tokens of the runs whose end is known and whose process is not gone yet.
awaited: set[str] = set()


def watch(request: Any, *, again: bool, told: Told | None = None) -> None:
    """Give back what the run of ``request`` holds as soon as its child is gone, and have recorded what it came to.
    Waits for nothing itself.

    Parameters:
        again: a copy of the task may run, unless the child died between storing its success and giving back.
        told: outcome and error of the run; ``None`` if another process records them, or the message
            is redelivered.
    """
    if not is_child(request.worker_pid):
        return  # A thread or a greenlet of this process ends by itself, gives back and tells by itself.
    hold = hold_of_request(request)
    if hold is None and (told is None or "scheduled_at" not in request.request_dict):
        return
    if hold is not None:
        awaited.add(hold.held.token)
    args = (request, hold, again, told)
    threading.Thread(target=_follow, args=args, name="redbeat-lite-departure", daemon=True).start()


def _follow(request: Any, hold: Hold | None, again: bool, told: Told | None = None) -> None:
    pid = request.worker_pid
    try:
        deadline = time.monotonic() + _GIVE_UP
        while not is_gone(pid):
            if time.monotonic() > deadline:
                logger.warning("Process %s does not end; task %s keeps its lock", pid, request.id)
                return
            time.sleep(_LOOK)
        # Forked in the middle of this, the child that takes the place of the one that is gone could hang.
        with held_off():
            if again and has_succeeded(request.task, request.id):
                again = False
                told = ("succeeded", "")
            if hold is not None:
                fate = fates.fate(hold.run, told, request.request_dict, began(request))
                Runtime.of(request.app).end(hold, again=again, patient=True, fate=fate)
            elif told is not None:
                fates.tell(request.app, request.request_dict, *told, began(request))
    finally:
        if hold is not None:
            awaited.discard(hold.held.token)


def began(request: Any) -> float | None:
    """When the body of a worker's request began, monotonic; ``None`` where it has not."""
    return time.monotonic() - (time.time() - request.time_start) if request.time_start else None


def token_of(request: Any) -> str | None:
    """The token of a worker's request; ``None`` where it is no affair of ours."""
    noted = request.request_dict.get(DELIVERY)
    return str(noted["token"]) if noted else None


def hold_of_request(request: Any) -> Hold | None:
    """What the run of a worker's request holds, worked out from the message alone; ``None`` for nothing."""
    if token_of(request) is None:
        return None
    try:
        return Runtime.of(request.app).hold(request.task, request.request_dict)
    except Exception as exc:  # noqa: BLE001 - a callable key may raise anything, and has raised in the child already
        logger.warning("Cannot tell the once-lock of task %s: %s", request.id, text_of(exc))
        return None


def is_gone(pid: int) -> bool:
    """Whether a process runs no more; a zombie does not."""
    try:
        os.kill(pid, 0)
    except OSError as exc:
        return exc.errno == errno.ESRCH
    try:
        # The state comes after the name, which may hold anything, in parentheses.
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False  # No /proc here: the pool reaps its children within a second anyway.
    return state in "ZX"


def is_child(pid: Any) -> bool:
    """Whether what a pool reports as the process of a run is one: the threads and solo pools report this process,
    gevent the identity of a greenlet."""
    return isinstance(pid, int) and pid != os.getpid() and 0 < pid < 2**31
