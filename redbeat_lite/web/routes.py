"""Table of routes: method and path -> the handler, and the right that the user needs."""

from __future__ import annotations

from . import actions, editing, maintenance, pages, timeline
from .access import Right
from .call import Handler

ROUTES: dict[tuple[str, str], tuple[Handler, Right]] = {
    ("GET", "/"): (pages.now, "view"),
    ("GET", "/entries"): (pages.entries, "view"),
    ("GET", "/entry"): (pages.entry, "view"),
    ("GET", "/runs"): (pages.runs, "view"),
    ("GET", "/changes"): (pages.changes, "view"),
    ("GET", "/timeline"): (timeline.timeline, "view"),
    ("GET", "/freezes"): (maintenance.freezes, "view"),
    ("GET", "/backfills"): (maintenance.backfills, "view"),
    ("GET", "/pipelines"): (maintenance.pipelines, "view"),
    ("GET", "/locks"): (maintenance.locks, "view"),
    ("GET", "/quarantine"): (maintenance.quarantine, "view"),
    ("GET", "/doctor"): (maintenance.doctor, "view"),
    ("GET", "/edit"): (editing.edit_form, "edit"),
    ("POST", "/edit"): (editing.edit, "edit"),
    ("GET", "/add"): (editing.add_form, "edit"),
    ("POST", "/add"): (editing.add, "edit"),
    ("POST", "/freeze"): (actions.freeze, "freeze"),
    ("POST", "/backfill"): (actions.backfill, "run"),
}
for _name, _action in actions.ACTIONS.items():
    ROUTES["POST", f"/{_name}"] = (actions.act, _action.right)
for _name, _bulk_action in actions.BULK_ACTIONS.items():
    ROUTES["POST", f"/{_name}-all"] = (actions.act_on_all, _bulk_action.right)

#: Path of a post with a form -> the handler that shows the form again, with the error.
FORMS: dict[str, Handler] = {
    "/edit": editing.edit_form,
    "/add": editing.add_form,
    "/freeze": maintenance.freezes,
    "/backfill": maintenance.backfills,
}
