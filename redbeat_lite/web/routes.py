"""Which page or action answers to which method and path, and the right that it takes."""

from __future__ import annotations

from . import editing, pages
from .access import Right
from .messages import Response
from .site import Call, Handler


def _run(call: Call) -> Response:
    call.site.schedules.run_now(call.name, note=call.given.get("note", ""))
    return call.done("run")


def _pause(call: Call) -> Response:
    call.site.schedules.pause(call.name, call.given.get("note", ""))
    return call.done("pause")


def _resume(call: Call) -> Response:
    call.site.schedules.resume(call.name, catch_up="catch_up" in call.given)
    return call.done("resume")


def _remove(call: Call) -> Response:
    call.site.schedules.remove(call.name)
    return call.done("remove", "entries")


ROUTES: dict[tuple[str, str], tuple[Handler, Right]] = {
    ("GET", "/"): (pages.now, "view"),
    ("GET", "/entries"): (pages.entries, "view"),
    ("GET", "/entry"): (pages.entry, "view"),
    ("GET", "/runs"): (pages.runs, "view"),
    ("GET", "/edit"): (editing.form, "edit"),
    ("POST", "/edit"): (editing.edit, "edit"),
    ("POST", "/run"): (_run, "run"),
    ("POST", "/pause"): (_pause, "pause"),
    ("POST", "/resume"): (_resume, "pause"),
    ("POST", "/remove"): (_remove, "remove"),
}
