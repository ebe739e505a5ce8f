"""The Lua scripts, which make every atomic write to the schedule, locks, pipelines and runs.

Why scripts
===========

Beats, workers and people change the same keys at the same time. Each of them first reads, then
decides in Python, and then writes. Between the reading and the writing another process may have
changed the entry, or another beat may have become the leader. So the write is a script, and the
server runs one script at a time. The script compares what it finds with what the writer has read,
and writes only if both are equal::

    beat                          server                        user
     |--- peek ------------------->|                              |
     |<-- entry, state "3|…" ------|                              |
     |    plan the next run        |<---------- pause ("3|…") ----|
     |                             |   state is now "4|…"         |
     |--- commit (guard "3|…") --->|                              |
     |<-- 0: another state --------|   nothing is sent            |

Rules decide in Python, and scripts only compare and set. The exceptions are small and need the
clock or the state of the server: who gets a lock next, which steps of a pipeline may begin, which
entries are due.

Files
=====

``lua/<folder>/<name>.lua`` is one operation. The folder names the kind of keys: ``schedule``,
``leader``, ``once`` and ``guard`` (locks and copies of messages), ``pipeline``, ``runs``. A file
whose first line is ``-- needs now leads`` is sent with ``lua/shared/now.lua`` and
``lua/shared/leads.lua`` in front of it. Each file begins with its contract: the KEYS, the ARGS,
and the possible replies.

Keys and arguments
==================

``scripts.run("schedule/page", keys, first=0, last=9)`` runs a script whose head names its KEYS and
ARGS. It takes the KEYS from the attributes of ``keys``, and the ARGS from the named values. The
script has them as locals: :func:`source` puts these in front of it.

- A script gets every key that it uses, and builds no name of a key. On a cluster the server needs
  the keys to find the node. All keys of one schedule have the same hash tag, so one node has them.
- Names and texts are bytes, and a script passes them on unread. It decodes no JSON of a user,
  because Lua would make ``{}`` of ``[]``, and round large integers.
- A script works on as many entries as it gets, and never on the whole schedule. The caller sets
  the limit, so that no call delays the others for long.
- A caller that acts as the leader passes ``token`` and ``term``. The script compares them first. If
  the term is over, it changes nothing and replies ``{0}``.
- Locks, leases and records go by the clock of the server (``shared/now.lua``). Planning goes by the
  clock of the leader, which passes the time as an argument.

Promises of one call
====================

- No other client sees a part of its writes. But if a command fails, the server does not undo the
  writes before it. So a script compares first, and makes a small write before it sends a message.
  That write fails if the server takes no writes.
- Each entry stands alone. If one of 1,000 was changed meanwhile, the other 999 are written, and the
  reply says which one was not.
- A script that changes the next due time publishes on the wake channel within the call.
- The record of changes is written in the same call as the change. A record that cannot be written
  leaves a gap and undoes no change.

Lost replies
============

A connection may break after the server has run a script and before the reply arrives. The client
then sends the call again (:mod:`redbeat_lite.store.connections`). The second call must have no
further effect and get the same reply:

``schedule/put``, ``schedule/discard``, ``schedule/note_change``
    The reply is kept for a minute, under a key with the id of the call.
``schedule/commit``
    ``meta`` keeps the reply to the leader's last commit, with the id of the call.
``schedule/freezes``, ``schedule/calendar``, ``schedule/quarantine``
    They compare with the old value. If the new value is there already, the reply is the same as for
    a write.
``leader/…``, ``once/…``, ``guard/…``, ``pipeline/…``
    They compare the token, task id or attempt that the first call has stored, so they recognise
    their own work.
``runs/record``
    A record is replaced only by one that says more. If a run is too old to have a record, its end
    is a second line in the feed of ends.
scripts that only read
    They change nothing.

After a fail-over the new master may lack the last writes, and no script can notice that. Then a run
may be sent again, under the same task id.

Loading
=======

A call sends the SHA-1 of the text. If the server does not know it, for example after a restart,
the text is loaded and the call is sent again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any, NamedTuple, cast

from redis.exceptions import MovedError, NoScriptError, ResponseError

from ..keys import find_foreign_key

# First words of a script that needs shared files.
_NEEDS = "-- needs "

# Ending of a key that a call may leave out. Such a key is sent as the first one, because a cluster
# takes no empty key, and is nil in the script.
_OPTIONAL = "?"

# Ending of the last name, if it takes all the rest.
_TAIL = "..."

# Text of every file, by folder and name without ".lua". The files are read when this module is
# imported, and not at the first use. The first use may come in a thread of a worker while its main
# thread forks a child. Finding files imports modules, and a lock of an import that is held at the
# fork is held in the child for ever. The child would hang at its first script.
_FILES = {
    f"{folder.name}/{file.name.removesuffix('.lua')}": file.read_text(encoding="utf-8")
    for folder in resources.files(__name__).joinpath("lua").iterdir()
    for file in folder.iterdir()
}


class _Head(NamedTuple):
    """Names of a script's KEYS and ARGV, as its first comment lists them."""

    keys: tuple[str, ...] = ()
    args: tuple[str, ...] = ()


@cache
def _head(name: str) -> _Head | None:
    """Return the names of ``lua/<name>.lua``; ``None`` for a script that counts its arguments."""
    names: dict[str, list[str]] = {"KEYS": [], "ARGS": []}
    for kind, line in re.findall(r"^-- (KEYS|ARGS): (.*)$", _FILES[name], re.MULTILINE):
        names[kind] += line.split()
    return _Head(tuple(names["KEYS"]), tuple(names["ARGS"])) if names["KEYS"] else None


def source(name: str) -> str:
    """Return the text that is loaded for ``lua/<name>.lua``.

    The locals for its KEYS and ARGV come first, and then the shared files that it needs, which may
    use these locals, too.
    """
    text = _FILES[name]
    first_line, _, _ = text.partition("\n")
    needed: list[str] = []
    if first_line.startswith(_NEEDS):
        needed = first_line.removeprefix(_NEEDS).split()
    shared = "".join(source(f"shared/{part}") for part in needed)
    head = _head(name) or _Head()
    return _locals("KEYS", head.keys) + _locals("ARGV", head.args) + shared + text


def _locals(table: str, names: Sequence[str]) -> str:
    """Return the Lua that names the items of a table."""
    lines = []
    for place, name in enumerate(names, 1):
        item = f"{table}[{place}]"
        if name.endswith(_OPTIONAL):
            lines.append(f"local {name[:-1]} = {item} ~= {table}[1] and {item} or nil\n")
        elif name.endswith(_TAIL):
            # Not unpack(), which takes 8,000 items at most.
            items = name.removesuffix(_TAIL)
            copy = f"{items}[n - {place - 1}] = {table}[n]"
            lines.append(f"local {items} = {{}} for n = {place}, #{table} do {copy} end\n")
        else:
            lines.append(f"local {name} = {item}\n")
    return "".join(lines)


@cache
def _sha(name: str) -> str:
    return hashlib.sha1(source(name).encode(), usedforsecurity=False).hexdigest()


class Call(NamedTuple):
    """One call of a script, with its KEYS and ARGV. Make it with :meth:`of`."""

    name: str
    keys: Sequence[str]
    args: Sequence[Any] = ()

    @classmethod
    def of(cls, script: str, keys: object, /, **values: Any) -> Call:
        """Return the call of ``lua/<script>.lua``.

        Parameters:
            keys: has the KEYS that ``values`` does not name as its attributes. ``None`` stands for
                a key that may be left out.
            values: the others, and each of the ARGS, by their names.

        Raises:
            TypeError: a value is missing, or the script takes none of this name.
        """
        head = _head(script) or _Head()
        places: list[str] = []
        args: list[Any] = []
        try:
            for name in head.keys:
                if name.endswith(_OPTIONAL):
                    places.append(getattr(keys, name[:-1]) or places[0])
                elif name.endswith(_TAIL):
                    places += values.pop(name.removesuffix(_TAIL))
                else:
                    places.append(values.pop(name) if name in values else getattr(keys, name))
            for name in head.args:
                if name.endswith(_TAIL):
                    args += values.pop(name.removesuffix(_TAIL))
                else:
                    args.append(values.pop(name))
        except (AttributeError, KeyError) as exc:
            raise TypeError(f"{script} lacks {exc}") from None
        if values:
            raise TypeError(f"{script} takes no {', '.join(values)}")
        return cls(script, places, args)

    @property
    def command(self) -> tuple[Any, ...]:
        """The command that the client sends."""
        return "EVALSHA", _sha(self.name), len(self.keys), *self.keys, *self.args


class Scripts:
    """The scripts, run through one Redis client."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def run(self, script: str, keys: object, /, *args: Sequence[Any], **values: Any) -> Any:
        """Run ``lua/<script>.lua``; return its reply, in which strings are bytes.

        Parameters:
            keys, values: as :meth:`Call.of` takes them.
            args: the ARGV of a script that counts its arguments; ``keys`` are its KEYS then.
        """
        if _head(script) is None:
            return self.send(Call(script, cast(Sequence[str], keys), *args))
        return self.send(Call.of(script, keys, **values))

    def send(self, call: Call) -> Any:
        """Return the reply to a call, in which strings are bytes."""
        # redis-py's own Script would cost the client a fifth more.
        command = call.command
        try:
            return self._client.execute_command(*command)
        except NoScriptError:
            self._client.script_load(source(call.name))
            return self._client.execute_command(*command)
        except ResponseError as exc:
            # In redis-py 5 only a cluster's client raises MovedError.
            text = str(exc)
            if text.startswith("MOVED "):
                raise MovedError(text.removeprefix("MOVED ")) from exc
            raise

    def together(self, asked: Sequence[Call | tuple[Any, ...]]) -> list[Any]:
        """Return the replies to independent scripts and commands, in one round trip.

        If one of them fails, its exception takes the place of its reply. Commands of other clients
        may come in between.

        Parameters:
            asked: calls and commands that change nothing. If the server does not know one of the
                scripts, all of them are sent again.
        """
        replies = self._sent(asked)
        if any(isinstance(reply, NoScriptError) for reply in replies):
            for name in {call.name for call in asked if isinstance(call, Call)}:
                self._client.script_load(source(name))
            replies = self._sent(asked)
        for place, reply in enumerate(replies):
            if isinstance(reply, ResponseError):
                command = _command_of(asked[place])
                replies[place] = find_foreign_key(self._client, command, reply) or reply
        return replies

    def _sent(self, asked: Sequence[Call | tuple[Any, ...]]) -> list[Any]:
        pipe = self._client.pipeline(transaction=False)
        for call in asked:
            # The pipeline of a cluster has no method for scripts, so commands go by their names.
            pipe.execute_command(*_command_of(call))
        return list(pipe.execute(raise_on_error=False))


def _command_of(call: Call | tuple[Any, ...]) -> tuple[Any, ...]:
    return call.command if isinstance(call, Call) else call


def checked(replies: Sequence[Any]) -> Sequence[Any]:
    """Return the replies of :meth:`Scripts.together`; raise the first exception among them."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies
