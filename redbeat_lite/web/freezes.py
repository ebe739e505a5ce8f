"""Freezes: those that hold, and how one is made."""

from __future__ import annotations

from ..entries.schedule_text import seconds_from
from .bulk import LOOKED_AT
from .messages import Response
from .site import Call


def page(call: Call) -> Response:
    """Those that hold, and a form for one more."""
    freezes = call.site.schedules.freezes
    return call.page("freezes.html", freezes=call.site.shared.read("freezes", lambda: [*freezes]))


def freeze(call: Call) -> Response:
    """Keep entries from firing for a time."""
    pattern, tag, task, length, note = call.texts("pattern", "tag", "task", "for", "note")
    made = call.site.schedules.freezes.add(
        pattern or ("*" if tag or task else ""),
        tag=tag or None,
        task=task or "*",
        seconds=seconds_from("for", length),
        mode="skip" if "skip" in call.given else "hold",
        note=note,
    )
    which = made.selection
    *_, some = call.site.schedules.select(which.name, tag=which.tag, task=which.task).search(LOOKED_AT, enough=1)
    return call.done("freeze" if any(some) else "freeze-none", "freezes")
