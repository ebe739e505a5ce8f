"""How commands fail: one line on stderr, and an exit code that a script can use.

This is the one home of the codes; a command that has more of them names them in its help.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from itertools import islice
from shlex import quote

import click

from ..errors import EntryNotFound, RedbeatError, text_of
from .output import clean

WRONG_REQUEST = 1
NO_SERVER = 2

#: Names that are looked at for one like a name that is unknown; it shall not take seconds to say "no".
_LOOKED_AT = 20_000


class Failure(click.ClickException):
    """The request is wrong: no such entry, a wrong value, a file that cannot be used, a wrong setting. The message is
    shown as one line."""

    exit_code = WRONG_REQUEST

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(clean(message).split()))


class ServerFailure(Failure):
    """The server or the broker cannot be reached, or refuses."""

    exit_code = NO_SERVER


@contextmanager
def explained(ctx: click.Context) -> Iterator[None]:
    """Turns what a command raises on purpose into a :class:`Failure`; a defect stays a traceback.

    ``ctx.params["name"]`` is what an unknown entry was asked for as.
    """
    try:
        yield
    except Exception as exc:
        failure = _failure(ctx, exc)
        if failure is None:
            raise
        raise failure from exc


def _failure(ctx: click.Context, exc: Exception) -> Failure | None:
    # Imported here, because the group is loaded with every command of Celery, and these load redis-py.
    from kombu.exceptions import OperationalError

    from ..interchange.importers.source import Unreadable
    from ..settings import Settings, key_root
    from ..storage.connections import FAULTS, Backend, refusal
    from ..storage.server_check import failover

    if isinstance(exc, EntryNotFound):
        return _not_stored(ctx, str(exc), str(ctx.params.get("name") or ""))
    if isinstance(exc, Unreadable):
        return ServerFailure(str(exc))
    if isinstance(exc, RedbeatError):
        return Failure(str(exc))
    if isinstance(exc, OperationalError):
        return ServerFailure(f"cannot reach the broker: {text_of(exc)}")
    if not isinstance(exc, FAULTS) or (isinstance(exc, OSError) and exc.errno == errno.EPIPE):
        return None  # a defect; or whoever read our output has gone, and click ends quietly
    settings = Settings.from_app(ctx.obj.app)
    why = text_of(refusal(exc, key_root(settings.key_prefix)))
    hints = [f"; {fault.what}" for fault in failover(ctx.obj.app)]
    return ServerFailure(f"cannot use {Backend(settings).display_url}: {why}{''.join(hints)}")


def unknown(message: str, name: str, known: Iterable[str]) -> Failure:
    """The failure that there is no such thing, with the names of those that it may have meant."""
    folded = {each.casefold(): each for each in known}
    near = [folded[each] for each in get_close_matches(name.casefold(), folded, n=3)]
    return Failure(f"{message}; did you mean {' or '.join(map(repr, near))}?" if near else message)


def _not_stored(ctx: click.Context, message: str, name: str) -> Failure:
    """The failure that there is no such entry: where it is instead, or the names of those that it may have meant."""
    from ..api.schedules import Schedules
    from ..storage.connections import FAULTS

    schedules = Schedules(ctx.obj.app)
    try:
        if (record := schedules.quarantined().get(name)) is not None:
            mend = f"mend that, then: celery -A ... redbeat quarantine release {quote(name)}"
            return Failure(f"{message}; it is in quarantine: {record.get('error')}; {mend}")
        if (error := schedules.refused().get(name)) is not None:
            return Failure(f"{message}; the beat refuses the one in beat_schedule: {error}")
        return unknown(message, name, islice(schedules, _LOOKED_AT))
    except FAULTS:
        return Failure(message)
