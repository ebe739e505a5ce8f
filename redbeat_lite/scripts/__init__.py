"""The Lua scripts, one file per operation.

Each file opens with its contract: KEYS, ARGV, what it returns. A script is told every key and the time it shall
believe in; none of them builds a key name or runs over more entries than it is given. A file that begins with
``-- needs <name>`` is sent with ``lua/<name>.lua`` in front of it, which holds functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

from redis.commands.core import Script as RedisScript

#: How a script begins that needs another file.
_NEEDS = "-- needs "


@cache
def source(name: str) -> str:
    """The text of ``lua/<name>.lua``, with what it needs in front of it."""
    text = resources.files(__name__).joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")
    first, _, _ = text.partition("\n")
    return source(first.removeprefix(_NEEDS)) + text if first.startswith(_NEEDS) else text


class Scripts:
    """The scripts bound to one Redis client.

    ``scripts.run("peek", keys, args)`` sends ``EVALSHA`` and loads the script first where the server does not know
    it, for example after a restart or a fail-over.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._bound: dict[str, RedisScript] = {}

    def run(self, name: str, keys: Sequence[str], args: Sequence[Any] = ()) -> Any:
        """Run ``lua/<name>.lua`` with these KEYS and ARGV and return its reply, with strings as bytes."""
        script = self._bound.get(name)
        if script is None:
            script = self._bound[name] = self._client.register_script(source(name))
        return script(keys=list(keys), args=list(args))
