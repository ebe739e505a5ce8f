"""Which page or action answers to which method and path, and the right that it takes."""

from __future__ import annotations

from . import actions, editing, pages
from .access import Right
from .site import Handler

ROUTES: dict[tuple[str, str], tuple[Handler, Right]] = {
    ("GET", "/"): (pages.now, "view"),
    ("GET", "/entries"): (pages.entries, "view"),
    ("GET", "/entry"): (pages.entry, "view"),
    ("GET", "/runs"): (pages.runs, "view"),
    ("GET", "/edit"): (editing.form, "edit"),
    ("POST", "/edit"): (editing.edit, "edit"),
    ("POST", "/run"): (actions.run, "run"),
    ("POST", "/pause"): (actions.pause, "pause"),
    ("POST", "/resume"): (actions.resume, "pause"),
    ("POST", "/remove"): (actions.remove, "remove"),
}
