"""``quarantine``: entries that were set aside because they could not be used."""

from __future__ import annotations

from typing import Any

import click

from ..instants import from_ms
from .command import Command, Group, completed, json_option, schedules_of
from .entry_output import tell
from .exit_codes import unknown
from .output import echo_fields, echo_json, echo_table, say, when

_name_argument = click.argument("name", shell_complete=completed(lambda store, start: store.quarantined()))


@click.group(cls=Group)
def quarantine() -> None:
    """Entries that were set aside, because what Redis holds for them cannot be used.

    \b
    Examples:
      celery -A proj redbeat quarantine list
      celery -A proj redbeat quarantine release nightly
    """


@quarantine.command("list", cls=Command)
@json_option
def list_(ctx: click.Context) -> None:
    """List them, with what is wrong.

    \b
    Example:
      celery -A proj redbeat quarantine list --json
    """
    records, zone = sorted(schedules_of(ctx).quarantined().items()), ctx.obj.app.timezone
    echo_json(_json(name, record) for name, record in records)
    rows = ((name, when(_since(record), zone), record.get("error")) for name, record in records)
    echo_table(("NAME", "SINCE", "ERROR"), rows, empty="No entry is in quarantine.", rigid=("SINCE",))


@quarantine.command(cls=Command)
@_name_argument
@json_option
def show(ctx: click.Context, name: str) -> None:
    """Show one, with all that is left of it.

    \b
    Example:
      celery -A proj redbeat quarantine show nightly
    """
    told = _json(name, _record(ctx, name))
    echo_json(told)
    echo_fields({**told, "since": when(told["since"], ctx.obj.app.timezone)}.items())


@quarantine.command(cls=Command)
@_name_argument
@json_option
def release(ctx: click.Context, name: str) -> None:
    """Put one back, as new, once what was wrong with it is mended.

    \b
    Example:
      celery -A proj redbeat quarantine release nightly
    """
    _record(ctx, name)
    tell(ctx, schedules_of(ctx).release(name), "released")


@quarantine.command(cls=Command)
@_name_argument
def remove(ctx: click.Context, name: str) -> None:
    """Forget one, for good.

    \b
    Example:
      celery -A proj redbeat quarantine remove nightly
    """
    _record(ctx, name)
    schedules_of(ctx).discard(name)
    say(f"removed {name!r} from quarantine")


def _record(ctx: click.Context, name: str) -> dict[str, Any]:
    records = schedules_of(ctx).quarantined()
    if name not in records:
        raise unknown(f"no entry {name!r} is in quarantine", name, records)
    return records[name]


def _since(record: dict[str, Any]) -> Any:
    at = record.get("at")
    return from_ms(at) if isinstance(at, int) else None


def _json(name: str, record: dict[str, Any]) -> dict[str, Any]:
    rest = {field: record.get(field) for field in ("error", "definition", "state")}
    return {"name": name, "since": _since(record), **rest}
