"""Which page or action answers to which method and path, and the right that it takes."""

from __future__ import annotations

from . import actions, aside, bulk, editing, pages, pipelines, timeline
from .access import Right
from .site import Handler

ROUTES: dict[tuple[str, str], tuple[Handler, Right]] = {
    ("GET", "/"): (pages.now, "view"),
    ("GET", "/entries"): (pages.entries, "view"),
    ("GET", "/entry"): (pages.entry, "view"),
    ("GET", "/runs"): (pages.runs, "view"),
    ("GET", "/changes"): (pages.changes, "view"),
    ("GET", "/timeline"): (timeline.page, "view"),
    ("GET", "/freezes"): (pages.freezes, "view"),
    ("GET", "/backfills"): (pages.backfills, "view"),
    ("GET", "/pipelines"): (pipelines.runs, "view"),
    ("GET", "/locks"): (aside.locks, "view"),
    ("GET", "/quarantine"): (aside.quarantine, "view"),
    ("GET", "/doctor"): (aside.doctor, "view"),
    ("GET", "/edit"): (editing.form, "edit"),
    ("POST", "/edit"): (editing.edit, "edit"),
    ("GET", "/add"): (editing.blank, "edit"),
    ("POST", "/add"): (editing.add, "edit"),
    ("POST", "/freeze"): (actions.freeze, "freeze"),
    ("POST", "/backfill"): (actions.backfill, "run"),
    **{("POST", f"/{does}"): (actions.act, right) for does, (right, *_) in actions.ACTIONS.items()},
    **{("POST", f"/{does}-all"): (bulk.act, right) for does, (right, *_) in bulk.ACTIONS.items()},
}

#: The form of what is posted where there is one of its own page: it is shown again, with what is wrong.
FORMS: dict[str, Handler] = {
    "/edit": editing.form,
    "/add": editing.blank,
    "/freeze": pages.freezes,
    "/backfill": pages.backfills,
}
