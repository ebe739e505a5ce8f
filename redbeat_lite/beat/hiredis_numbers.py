"""Numbers are sent as text: a way around a crash in hiredis.

hiredis, where it is installed, packs the commands of redis-py. It turns a number into text by a call that also runs the
handlers of signals, and does not see that one raised: Celery's, which raises SystemExit, then ends the process with a
segmentation fault. Text and bytes it takes as they are.
"""

from __future__ import annotations

from typing import Any

from redis import connection
from redis.connection import HiredisRespSerializer
from redis.exceptions import DataError

_TEXT = frozenset((bytes, str))


def spell_numbers_out() -> None:
    """Have every connection of this process spell numbers out by itself, kombu's too. For a beat: its main thread
    handles signals, and may be in any of them at that moment. Does nothing where there is no hiredis."""
    HiredisRespSerializer.pack = _packed  # type: ignore[method-assign]


def _packed(self: HiredisRespSerializer, *args: Any) -> list[bytes]:
    # Of a thousand arguments nearly all are text; to compare their types is half as dear as isinstance().
    words = [arg if type(arg) in _TEXT else _spelled(arg) for arg in args]
    words[:1] = words[0].split()  # "CONFIG GET", of which redis-py makes one
    try:
        return [connection.hiredis.pack_command(tuple(words))]  # type: ignore[attr-defined]
    except TypeError as exc:
        raise DataError(str(exc)) from exc


def _spelled(arg: Any) -> Any:
    if isinstance(arg, (bytearray, memoryview)):
        return bytes(arg)
    return str(arg) if isinstance(arg, (int, float)) and arg is not True and arg is not False else arg
