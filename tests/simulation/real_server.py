"""Runs calls on a real server, and reads what a script has left in its keys at the same moment."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import redis

from redbeat_lite.store.scripts import source
from tests.simulation.contracts import Call
from tests.simulation.numbers import format_score
from tests.simulation.values import CommandError, Database, Members, SortedSet, Stream

#: Lines of a stream that are compared, the newest.
NEWEST = 3

#: Options by which the server keeps hashes in the order of their fields, and sorted sets as lists, as the model does.
OPTIONS = {
    "hash-max-listpack-entries": "100000",
    "hash-max-listpack-value": "1000000",
    "zset-max-listpack-entries": "100000",
    "zset-max-listpack-value": "1000000",
}

_BEFORE = "local is_done, reply = pcall(function() "

#: The time stands still within a script, so the model can be given the time of the call.
_AFTER = """
end)
local time, kept = redis.call('TIME'), {}
for n, key in ipairs(KEYS) do
  local kind = redis.call('TYPE', key)['ok']
  local value = ''
  if kind == 'string' then
    value = redis.call('GET', key)
  elseif kind == 'hash' then
    value = redis.call('HGETALL', key)
  elseif kind == 'zset' then
    value = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  elseif kind == 'list' then
    value = redis.call('LRANGE', key, 0, -1)
  elseif kind == 'set' then
    value = redis.call('SMEMBERS', key)
    table.sort(value)
  elseif kind == 'stream' then
    value = {redis.call('XLEN', key), redis.call('XREVRANGE', key, '+', '-', 'COUNT', NEWEST)}
  end
  kept[n] = {kind, redis.call('PEXPIRETIME', key), value}
end
local micros = time[1] * 1000000 + time[2]
if is_done then
  return {micros, kept, 1, reply}
end
return {micros, kept, 0, tostring(reply)}
""".replace("NEWEST", str(NEWEST))

#: One command of somebody else, whatever comes of it.
_FOREIGN = """
redis.pcall(unpack(ARGV))
local time = redis.call('TIME')
return {time[1] * 1000000 + time[2], {}, 1}
"""

#: A command of somebody else: its name and its arguments.
Foreign = tuple[str, ...]


class Outcome(NamedTuple):
    """The time of a call, what its keys hold after it, and its reply."""

    now_us: int
    keys: list[Any]
    reply: Any


class RealServer:
    """A server of its own kind, by a client of redis-py."""

    def __init__(self, client: redis.Redis) -> None:
        self._client: Any = client
        self._loaded: dict[str, str] = {}

    def run(self, calls: Sequence[Call | Foreign]) -> list[Outcome]:
        """Run these in one round trip; return what came of each, an error as CommandError."""
        pipe = self._client.pipeline(transaction=False)
        for call in calls:
            if isinstance(call, Call):
                pipe.evalsha(self._load(call.script), len(call.keys), *call.keys, *call.args)
            else:
                pipe.eval(_FOREIGN, 0, *call)
        return [_outcome(reply) for reply in pipe.execute()]

    def _load(self, script: str) -> str:
        if script not in self._loaded:
            text = _BEFORE + source(script) + _AFTER
            self._loaded[script] = self._client.script_load(text)
        return self._loaded[script]


def _outcome(reply: list[Any]) -> Outcome:
    micros, keys, is_done, *rest = reply
    value: Any = rest[0] if rest else None
    if not is_done:
        value = CommandError(value.decode(errors="replace"))
    return Outcome(micros, keys, value)


def kept(database: Database, keys: Sequence[str]) -> list[Any]:
    """What the model holds in these keys, in the form of :attr:`Outcome.keys`."""
    return [_kept(database, key.encode()) for key in keys]


def _kept(database: Database, key: bytes) -> list[Any]:
    value = database.find(key)
    if value is None:
        return [b"none", -2, b""]
    expiry = database.expiry(key)
    return [database.kind(key).encode(), -1 if expiry is None else expiry, _plain(value)]


def _plain(value: Any) -> Any:
    if isinstance(value, Members):
        return sorted(value)
    if isinstance(value, dict):
        return [text for pair in value.items() for text in pair]
    if isinstance(value, SortedSet):
        return [text for score, member in value.ordered for text in (member, format_score(score))]
    if isinstance(value, deque):
        return list(value)
    if isinstance(value, Stream):
        newest = value.lines[::-1][:NEWEST]
        return [len(value), [[b"%d-%d" % at, fields] for at, fields in newest]]
    return value
