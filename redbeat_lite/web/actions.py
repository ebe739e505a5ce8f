"""What is done by one post: to an entry, a lock, a freeze, a backfill or a run of a pipeline, or about an incident."""

from __future__ import annotations

from collections.abc import Callable

from ..once.lock_listing import locks
from ..pipeline import PipelineRun
from .access import Right
from .messages import Response
from .site import Call

#: What a path does: the right that it takes, the page that shows it then, and how it is done; False: there was nothing
#: to do any more.
ACTIONS: dict[str, tuple[Right, str, Callable[[Call], object]]] = {
    "run": ("run", "entry", lambda call: call.site.schedules.run_now(call.name, note=call.note)),
    "pause": ("pause", "entry", lambda call: call.site.schedules.pause(call.name, call.note)),
    "resume": ("pause", "entry", lambda call: call.site.schedules.resume(call.name, catch_up="catch_up" in call.given)),
    "remove": ("remove", "entries", lambda call: call.site.schedules.remove(call.name, note=call.note)),
    "ack": ("pause", "./", lambda call: call.site.schedules.acknowledge(call.id, call.note)),
    "thaw": ("freeze", "freezes", lambda call: call.site.schedules.freezes.thaw(call.id)),
    "backfills-pause": ("run", "backfills", lambda call: call.site.schedules.backfills.pause(call.id)),
    "backfills-resume": ("run", "backfills", lambda call: call.site.schedules.backfills.resume(call.id)),
    "backfills-cancel": ("run", "backfills", lambda call: call.site.schedules.backfills.cancel(call.id)),
    "pipelines-resume": ("run", "pipelines", lambda call: PipelineRun(call.site.app, call.id).resume(note=call.note)),
    "pipelines-cancel": ("run", "pipelines", lambda call: _cancelled(call)),
    "locks-clear": ("locks", "locks", lambda call: locks(call.site.app).clear(call.id)),
    "quarantine-release": ("edit", "entry", lambda call: call.site.schedules.release(call.name)),
    "quarantine-remove": ("remove", "quarantine", lambda call: call.site.schedules.discard(call.name)),
}


def act(call: Call) -> Response:
    """Do what the path says, and lead to where it shows; where somebody else was first, that tells how it stands."""
    does = call.request.path[1:]
    _, page, do = ACTIONS[does]
    return call.done(does if do(call) is not False else None, page)


def _cancelled(call: Call) -> bool:
    return PipelineRun(call.site.app, call.id).cancel(terminate="terminate" in call.given, note=call.note)
