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
``lua/shared/leads.lua`` in front of it. Each file begins with its contract: the KEYS, the ARGV,
and the possible replies.

Keys and arguments
==================

``scripts.run("schedule/put", keys, args)`` sends the lists ``KEYS`` and ``ARGV``.

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
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from redis.exceptions import MovedError, NoScriptError, ResponseError

from ..keys import find_foreign_key

# First words of a script that needs shared files.
_NEEDS = "-- needs "

# Text of every file, by folder and name without ".lua". The files are read when this module is
# imported, and not at the first use. The first use may come in a thread of a worker while its main
# thread forks a child. Finding files imports modules, and a lock of an import that is held at the
# fork is held in the child for ever. The child would hang at its first script.
_FILES = {
    f"{folder.name}/{file.name.removesuffix('.lua')}": file.read_text(encoding="utf-8")
    for folder in resources.files(__name__).joinpath("lua").iterdir()
    for file in folder.iterdir()
}


def source(name: str) -> str:
    """Return the text of ``lua/<name>.lua``, with the shared files that it needs in front of it."""
    text = _FILES[name]
    first_line, _, _ = text.partition("\n")
    if not first_line.startswith(_NEEDS):
        return text
    needed = first_line.removeprefix(_NEEDS).split()
    return "".join(source(f"shared/{shared}") for shared in needed) + text


@cache
def _sha(name: str) -> str:
    return hashlib.sha1(source(name).encode(), usedforsecurity=False).hexdigest()


class Call(NamedTuple):
    """One call of a script, with its KEYS and ARGV."""

    name: str
    keys: Sequence[str]
    args: Sequence[Any] = ()

    @property
    def command(self) -> tuple[Any, ...]:
        """The command that the client sends."""
        return "EVALSHA", _sha(self.name), len(self.keys), *self.keys, *self.args


class Scripts:
    """The scripts, run through one Redis client."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def run(self, name: str, keys: Sequence[str], args: Sequence[Any] = ()) -> Any:
        """Run ``lua/<name>.lua``; return its reply, in which strings are bytes."""
        # redis-py's own Script would cost the client a fifth more.
        command = Call(name, keys, args).command
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
