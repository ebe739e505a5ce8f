"""What a worker with ``install()`` has tasks of other classes do for the locks that their messages bring."""

from __future__ import annotations

from functools import wraps
from typing import Any

from .run import begin, let_go_after

#: Marks what was put around a hook or a body.
_ADOPTED = "redbeat_adopted"


def adopt(task: Any) -> None:
    """Make a task of another class take the lock its message brings from the beat or from ``once_key``, and do with it
    and with STARTED as ours do. Again does nothing."""
    task.track_started = False
    if not hasattr(task.run, _ADOPTED):
        # Of this task and not in its class: Celery may have put its own retry around the body, in the task as well.
        task.run = _letting_go(task, task.run)
    original = type(task).before_start
    if not hasattr(original, _ADOPTED):
        # In ``before_start``: what a signal's receiver raises, Celery swallows, and the body would run unlocked.
        @wraps(original)
        def before_start(self: Any, *args: Any, **kwargs: Any) -> None:
            begin(self)  # Of a class with a hook of its own, whose base was adopted as well, the second does nothing.
            original(self, *args, **kwargs)

        setattr(before_start, _ADOPTED, True)
        type(task).before_start = before_start


def _letting_go(task: Any, body: Any) -> Any:
    @wraps(body)
    def run_body(*args: Any, **kwargs: Any) -> Any:  # a function, as whoever inspects tasks expects
        return let_go_after(task, body, *args, **kwargs)

    setattr(run_body, _ADOPTED, True)
    return run_body
