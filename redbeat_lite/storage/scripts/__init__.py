"""The Lua scripts, one file per operation.

Each file opens with its contract: KEYS, ARGV, what it returns. A script is told every key and the time it shall
believe in; none of them builds a key name or runs over more entries than it is given. A file that begins with
``-- needs <name>`` is sent with ``lua/<name>.lua`` in front of it, which holds functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from typing import Any

from redis.commands.core import Script as RedisScript

#: How a script begins that needs another file.
_NEEDS = "-- needs "

#: Every file, by its name without ``.lua``. Read with this module and not at the first use: that may come in a thread
#: of a worker while its main thread forks a child, and looking for files imports modules. A lock of an import that is
#: held at that moment is held in the child for ever, which would hang at its first script.
_FILES = {
    file.name.removesuffix(".lua"): file.read_text(encoding="utf-8")
    for file in resources.files(__name__).joinpath("lua").iterdir()
    if file.name.endswith(".lua")
}


def source(name: str) -> str:
    """The text of ``lua/<name>.lua``, with what it needs in front of it."""
    text = _FILES[name]
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
