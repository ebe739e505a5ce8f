"""What is done to one entry, or about one incident."""

from __future__ import annotations

from .messages import Response
from .site import Call


def run(call: Call) -> Response:
    """Send one extra run."""
    call.site.schedules.run_now(call.name, note=call.given.get("note", ""))
    return call.done("run")


def pause(call: Call) -> Response:
    """Pause it, with a note."""
    call.site.schedules.pause(call.name, call.given.get("note", ""))
    return call.done("pause")


def resume(call: Call) -> Response:
    """Resume it, and make up for what was missed if that is ticked."""
    call.site.schedules.resume(call.name, catch_up="catch_up" in call.given)
    return call.done("resume")


def remove(call: Call) -> Response:
    """Remove it."""
    call.site.schedules.remove(call.name, note=call.given.get("note", ""))
    return call.done("remove", "entries")


def acknowledge(call: Call) -> Response:
    """Say who has taken up an incident."""
    call.site.schedules.acknowledge(call.given.get("id", ""), call.given.get("note", ""))
    return call.done("ack", "./")
