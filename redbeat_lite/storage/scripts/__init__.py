"""The Lua scripts, one file per operation, in a folder for each kind of keys.

Each file opens with its contract: KEYS, ARGV, what it returns. A script is told every key, and the time where it
matters what a beat believes; none of them builds a key name or runs over more entries than it is given. A file that
begins with ``-- needs <name> ...`` is sent with these files of ``lua/shared`` in front of it, which hold what several
need.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from redis.exceptions import MovedError, NoScriptError, ResponseError

from ..key_types import find_foreign_key

#: How a script begins that needs others.
_NEEDS = "-- needs "

#: Every file, by its folder and its name without ``.lua``. Read with this module and not at the first use: that may
#: come in a thread of a worker while its main thread forks a child, and looking for files imports modules. A lock of an
#: import that is held at that moment is held in the child for ever, which would hang at its first script.
_FILES = {
    f"{folder.name}/{file.name.removesuffix('.lua')}": file.read_text(encoding="utf-8")
    for folder in resources.files(__name__).joinpath("lua").iterdir()
    for file in folder.iterdir()
}


def source(name: str) -> str:
    """The text of ``lua/<name>.lua``, with what it needs in front of it."""
    text = _FILES[name]
    first, _, _ = text.partition("\n")
    needed = first.removeprefix(_NEEDS).split() if first.startswith(_NEEDS) else []
    return "".join(source(f"shared/{each}") for each in needed) + text


@cache
def _sha(name: str) -> str:
    return hashlib.sha1(source(name).encode(), usedforsecurity=False).hexdigest()


def _command(name: str, keys: Sequence[str], args: Sequence[Any]) -> tuple[Any, ...]:
    return "EVALSHA", _sha(name), len(keys), *keys, *args


class Call(NamedTuple):
    """A script that is run together with others: as :meth:`Scripts.run` takes it."""

    name: str
    keys: Sequence[str]
    args: Sequence[Any] = ()

    @property
    def command(self) -> tuple[Any, ...]:
        """What is sent."""
        return _command(*self)


class Scripts:
    """The scripts bound to one Redis client.

    ``scripts.run("schedule/peek", keys, args)`` sends ``EVALSHA`` and loads the script first where the server does not
    know it, for example after a restart or a fail-over.
    """

    def __init__(self, client: Any) -> None:
        self._client = client

    def run(self, name: str, keys: Sequence[str], args: Sequence[Any] = ()) -> Any:
        """Run ``lua/<name>.lua`` with these KEYS and ARGV and return its reply, with strings as bytes."""
        # Not by way of redis-py's Script, which costs the client a fifth more.
        command = _command(name, keys, args)
        try:
            return self._client.execute_command(*command)
        except NoScriptError:
            self._client.script_load(source(name))
            return self._client.execute_command(*command)
        except ResponseError as exc:
            # In redis-py 5 only a cluster's client raises MovedError.
            text = str(exc)
            if text.startswith("MOVED "):
                raise MovedError(text.removeprefix("MOVED ")) from exc
            raise

    def together(self, asked: Sequence[Call | tuple[Any, ...]]) -> list[Any]:
        """Return the replies to independent scripts and commands, in one round trip.

        The exception of one that fails stands for its reply. Commands of other clients may come in
        between.

        Parameters:
            asked: they change nothing: where the server does not know a script, all are sent again.
        """
        replies = self._sent(asked)
        if any(isinstance(reply, NoScriptError) for reply in replies):
            for name in {each.name for each in asked if isinstance(each, Call)}:
                self._client.script_load(source(name))
            replies = self._sent(asked)
        for place, reply in enumerate(replies):
            if isinstance(reply, ResponseError):
                replies[place] = find_foreign_key(self._client, _sent_as(asked[place]), reply) or reply
        return replies

    def _sent(self, asked: Sequence[Call | tuple[Any, ...]]) -> list[Any]:
        pipe = self._client.pipeline(transaction=False)
        for each in asked:
            # By its name, as the pipeline of a cluster has no method for scripts.
            pipe.execute_command(*_sent_as(each))
        return list(pipe.execute(raise_on_error=False))


def _sent_as(asked: Call | tuple[Any, ...]) -> tuple[Any, ...]:
    return asked.command if isinstance(asked, Call) else asked


def checked(replies: Sequence[Any]) -> Sequence[Any]:
    """Replies of :meth:`Scripts.together`, none of which may be missing; raises the first that is an error."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies
