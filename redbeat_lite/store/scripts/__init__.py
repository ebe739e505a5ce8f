"""Lua scripts, which make all atomic writes to the schedule, locks, pipelines and records of runs.

Why scripts
===========

Beats, workers and users change the same keys at the same time. Each of them reads an entry, decides
in Python, and writes. Between the read and the write, another process may change the entry, or
another beat may become the leader. So the write is a script, and the server runs one script at a
time. The script compares the stored state with the state that the writer has read, and writes only
if both are equal::

    beat                          server                        user
     |--- peek ------------------->|                              |
     |<-- entry, state "3|…" ------|                              |
     |    plan the next run        |<---------- pause ("3|…") ----|
     |                             |   state is now "4|…"         |
     |--- commit (guard "3|…") --->|                              |
     |<-- 0: another state --------|   nothing is sent            |

Python decides, and scripts only compare and set. The few exceptions need the clock or the state of
the server: which task gets a lock next, which steps of a pipeline begin, which entries are due.

Files
=====

``lua/<folder>/<name>.lua`` is one operation. The folder names the kind of keys: ``schedule``,
``leader``, ``once`` and ``guard`` (locks and copies of messages), ``pipeline``, ``runs``. If the
first line of a file is ``-- needs now leads``, ``lua/shared/now.lua`` and ``lua/shared/leads.lua``
are put in front of it.

Most edits have no script of their own. They are lists of checks and commands
(:mod:`redbeat_lite.store.transact`), which ``schedule/transact.lua`` runs. Operations that run
often or need the server's time have scripts: the lease, the dispatch, locks, pipelines and records
of runs.

Conventions
===========

names
    The head of a script lists its KEYS and ARGS, and :func:`source` makes them locals. A call
    passes them by name: ``scripts.run("leader/resign", keys, token="…")`` takes the KEYS from
    the attributes of ``keys``. A call can leave out ``lock?``. ``names...`` is the list of all
    remaining values. A missing or an unknown name is an error.
keys
    A script gets every key that it uses, because a cluster finds the node by the keys. All keys of
    one schedule have the same hash tag, so they are on one node.
lists
    A long list with parts, such as the entries of a commit, is one argument in MessagePack. A list
    of arguments would cost the client more, and the script would have to find its parts.
texts
    Names and texts are bytes, which a script does not decode. A script decodes no JSON of a user,
    because Lua would turn ``[]`` into ``{}``, and round large integers.
terms
    The leader passes ``token`` and the number of its term, which a script compares first. If the
    term is over, the script changes nothing.
clock
    Scripts use the clock of the server (``shared/now.lua``).
batches
    No script works on the whole schedule. The caller limits the number of entries, so that no call
    delays the others for long. One edit takes the server about 9 µs::

        250 edits x 9 µs = 2.3 ms < 5 ms

call ids
    A connection may break after the server has run a script and before the reply arrives. The
    client then sends the call again (:mod:`redbeat_lite.store.connections`). The second call must
    have no further effect and get the same reply. ``transact`` keeps its reply for a minute, under
    a key with the id of the call, and ``commit`` keeps its last reply in ``meta``. The other
    scripts find the token, task id or attempt that the first call has stored. ``runs/record``
    replaces an outcome only by a weightier one. Only if a run is too old to have a row, a second
    call has an effect: the end of the run is in the feed of ends twice. The second call of
    ``pipeline/cancel``, ``pipeline/resume`` or ``pipeline/lost`` has no effect, but another reply:
    that there was nothing to do. So the caller goes on with the run after either reply, or leaves
    it to the sweeper, and a cancel or resume may be missing in the record of changes.

Failures
========

- A command fails inside a script: the server does not undo the writes before it. So a script
  compares before it writes, and makes a small write before it sends a message. If the server takes
  no writes, this write fails, and no message is sent.
- A key has a foreign type: the call raises :class:`redbeat_lite.store.keys.ForeignKey`, which names
  it. An edit of entries reads each of its keys before it writes.
- An entry was changed meanwhile: its step is not made, and the reply says so. The other steps are
  made.
- A user may not write the record of changes: the edit is made, and the record has a gap.
- A user may not use the wake channel: the edit is made, and the beat notices it within seconds.
- The server does not know a script, for example after a restart: the client loads the script and
  sends the call again.
- A fail-over loses the last writes of the old master, which no script can notice. A run may be sent
  again, with the same task id.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

import msgspec
from redis.exceptions import NoScriptError, ResponseError

from ..keys import find_foreign_key

# Ending of the name of a key that a call can leave out. The first key is sent in its place, because
# a cluster takes no empty key. The head that _locals() adds to the script turns it into nil.
_OPTIONAL = "?"

# Ending of the last name, if this name stands for the list of all remaining values.
_LIST = "..."

#: A command of Redis, with its arguments.
Command = tuple[Any, ...]

# Text of every file, by folder and name without ".lua".
# The files are read when this module is imported, and not at the first use, because a thread of a
# worker may use a script while the main thread forks a child. Finding files imports modules. If the
# lock of an import is held at the fork, it is held in the child for ever, and the child would hang
# at its first script.
_FILES = {
    f"{folder.name}/{file.name.removesuffix('.lua')}": file.read_text(encoding="utf-8")
    for folder in resources.files(__name__).joinpath("lua").iterdir()
    for file in folder.iterdir()
}


@cache
def _names(script: str, kind: str) -> dict[str, str]:
    """Return the names in the head of a script, in order, each with its ending.

    The ending is :data:`_OPTIONAL`, :data:`_LIST` or empty.

    Parameters:
        kind: ``"KEYS"``, ``"ARGS"``, or ``"needs"`` for the shared files that the script needs.
    """
    lines = re.findall(rf"^-- {kind}:? (.*)$", _FILES[script], re.MULTILINE)
    return dict(re.findall(r"(\w+)(\?|\.\.\.|)", " ".join(lines)))


def source(name: str) -> str:
    """Return the text that is loaded for ``lua/<name>.lua``.

    The locals for its KEYS and ARGV come first. After them come the shared files, which use these
    locals, too. The first line of a file names the shared files that it needs:
    ``-- needs now leads`` means ``lua/shared/now.lua`` and ``lua/shared/leads.lua``.
    """
    shared = "".join(source(f"shared/{part}") for part in _names(name, "needs"))
    head = _locals("KEYS", _names(name, "KEYS")) + _locals("ARGV", _names(name, "ARGS"))
    return head + shared + _FILES[name]


def _locals(table: str, names: dict[str, str]) -> str:
    """Return Lua text with a local variable for each item of a table.

    Parameters:
        table: ``"KEYS"`` or ``"ARGV"``.
        names: names of its items in order, with their endings. ``name?`` is nil if the call leaves
            it out, and ``name...`` is the list of all remaining items.
    """
    lines = []
    for place, (name, ending) in enumerate(names.items(), 1):
        item = f"{table}[{place}]"
        if ending == _OPTIONAL:
            # For a key that is left out, the call has sent the first key (see _OPTIONAL):
            # local lock = KEYS[2] ~= KEYS[1] and KEYS[2] or nil
            item += f" ~= {table}[1] and {item} or nil"
        elif ending == _LIST:
            # Use a loop and not unpack(), which takes 8,000 items at most:
            # local names = {} for n = 3, #ARGV do names[n - 2] = ARGV[n] end
            item = f"{{}} for n = {place}, #{table} do {name}[n - {place - 1}] = {table}[n] end"
        lines.append(f"local {name} = {item}\n")
    return "".join(lines)


@cache
def _sha(name: str) -> str:
    """Return the digest by which a command calls ``lua/<name>.lua``."""
    return hashlib.sha1(source(name).encode(), usedforsecurity=False).hexdigest()


def _items(script: str, kind: str, sources: Sequence[object], values: dict[str, Any]) -> list[Any]:
    """Return the KEYS or the ARGS of a call, in the order in which the script lists them.

    A value comes from ``values``, or else from the first source with an attribute of this name.

    Raises:
        TypeError: neither ``values`` nor a source has one of the names.
    """
    items: list[Any] = []
    for name, ending in _names(script, kind).items():
        holders = [source for source in sources if hasattr(source, name)]
        if name in values:
            item = values[name]
        elif holders:
            item = getattr(holders[0], name)
        else:
            raise TypeError(f"{script} lacks {name!r}")
        if ending == _LIST:
            # The name stands for the list of all remaining values.
            items += item
        else:
            # ``None`` is a key that is left out, or an argument without a value.
            items.append("" if item is None else item)
    return items


def packed_text(value: Any) -> str | msgspec.Raw:
    """Return a value as text for a packed argument.

    Python's bytes would become MessagePack's binary form, which the server's Lua cannot read.
    """
    if isinstance(value, bytes):
        # In MessagePack, a text begins with the byte 0xDB, and four bytes with its length follow.
        return msgspec.Raw(b"\xdb" + len(value).to_bytes(4, "big") + value)
    return str(value)


def command_of(script: str, /, *sources: object, **values: Any) -> Command:
    """Return the command that calls ``lua/<script>.lua``.

    Parameters:
        sources: objects whose attributes are the KEYS and ARGS that ``values`` does not have. For
            each name, the first object with this attribute counts.
        values: KEYS and ARGS by their names. A key that is ``None`` is left out. An argument that
            is ``None`` is sent as the empty text.

    Raises:
        TypeError: a name is missing, or ``values`` has a name that the script does not take.
    """
    keys = _items(script, "KEYS", sources, values)
    args = _items(script, "ARGS", sources, values)
    unknown = values.keys() - _names(script, "KEYS").keys() - _names(script, "ARGS").keys()
    if unknown:
        raise TypeError(f"{script} takes no {', '.join(unknown)}")
    # A key that is left out is sent as the first key, because a cluster takes no empty key.
    # _locals() makes it nil in the script.
    sent_keys = [key or keys[0] for key in keys]
    return "EVALSHA", _sha(script), len(keys), *sent_keys, *args


class Scripts:
    """The scripts, run through one Redis client."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def run(self, script: str, /, *sources: object, **values: Any) -> Any:
        """Run ``lua/<script>.lua`` with the arguments of :func:`command_of`; return its reply.

        Strings in the reply are bytes.
        """
        command = command_of(script, *sources, **values)
        # Calling the script with redis-py's class Script would take the client a fifth longer.
        try:
            return self._client.execute_command(*command)
        except NoScriptError:
            # The server has not loaded this script, or has lost it by a restart.
            self._client.script_load(source(script))
            return self._client.execute_command(*command)

    def together(self, commands: Sequence[Command]) -> list[Any]:
        """Return the replies to independent commands, in one round trip.

        If one of them fails, its exception takes the place of its reply. Commands of other clients
        may run in between.

        Parameters:
            commands: commands that change nothing.
        """
        pipe = self._client.pipeline(transaction=False)
        for command in commands:
            pipe.execute_command(*command)
        replies = list(pipe.execute(raise_on_error=False))
        for place, reply in enumerate(replies):
            if isinstance(reply, ResponseError):
                # If another program uses the key, replace the server's error by one that names the
                # key. Outside of a pipeline, execute_command() of the client does so.
                error = find_foreign_key(self._client, commands[place], reply)
                replies[place] = error or reply
        return replies


def checked(replies: Sequence[Any]) -> Sequence[Any]:
    """Return the replies of :meth:`Scripts.together`; raise the first exception among them."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies
