"""Tables of the routes: method and path -> the handler, and the right that the user needs."""

from __future__ import annotations

from . import actions, editing, maintenance, pages, timeline
from .access import Right
from .call import Handler

#: Page -> the handler that shows it. All of these need the right to view.
_PAGES: dict[str, Handler] = {
    "": pages.now,
    "entries": pages.entries,
    "entry": pages.entry,
    "runs": pages.runs,
    "changes": pages.changes,
    "timeline": timeline.timeline,
    "freezes": maintenance.freezes,
    "backfills": maintenance.backfills,
    "pipelines": maintenance.pipelines,
    "locks": maintenance.locks,
    "quarantine": maintenance.quarantine,
    "doctor": maintenance.doctor,
}

ROUTES: dict[tuple[str, str], tuple[Handler, Right]] = {
    ("GET", "/edit"): (editing.edit_form, "edit"),
    ("POST", "/edit"): (editing.edit, "edit"),
    ("GET", "/add"): (editing.add_form, "edit"),
    ("POST", "/add"): (editing.add, "edit"),
    ("POST", "/freeze"): (actions.freeze, "freeze"),
    ("POST", "/backfill"): (actions.backfill, "run"),
}
for _page, _handler in _PAGES.items():
    ROUTES["GET", f"/{_page}"] = (_handler, "view")
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
