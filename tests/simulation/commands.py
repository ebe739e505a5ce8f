"""The commands of the model server: those that the package and kombu send, and no others."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from itertools import dropwhile, takewhile
from operator import itemgetter
from typing import Any, NamedTuple

from tests.simulation.numbers import format_score, integer, score
from tests.simulation.values import NAMES, CommandError, Database, Hash, List, Members, Refusal, SortedSet, Stream

SYNTAX = "ERR syntax error"
NOT_A_RANGE = "ERR min or max is not a float"
NOT_A_STRING_RANGE = "ERR min or max not valid string range item"
BAD_ID = "ERR Invalid stream ID specified as stream command argument"

Args = Sequence[bytes]


class Status(bytes):
    """Reply that is a status, such as OK."""


OK = Status(b"OK")


class Command(NamedTuple):
    """One command: its function, and how many arguments it takes at least and at most."""

    run: Callable[[Database, Args], Any]
    least: int
    most: float


COMMANDS: dict[bytes, Command] = {}


def command(name: str, least: int, most: float = math.inf) -> Callable[[Any], Any]:
    """Register a function as a command."""

    def register(run: Callable[[Database, Args], Any]) -> Callable[[Database, Args], Any]:
        COMMANDS[name.encode()] = Command(run, least, most)
        return run

    return register


# -- keys ------------------------------------------------------------------------------------------


@command("DEL", 1)
def _delete(db: Database, args: Args) -> int:
    return sum(db.find(key) is not None and db.delete(key) for key in args)


@command("EXISTS", 1)
def _exists(db: Database, args: Args) -> int:
    return sum(db.find(key) is not None for key in args)


_TYPES = {name: Status(name.encode()) for name in ("none", *NAMES.values())}


@command("TYPE", 1, 1)
def _type(db: Database, args: Args) -> Status:
    return _TYPES[db.kind(args[0])]


@command("PEXPIRE", 2, 2)
def _pexpire(db: Database, args: Args) -> int:
    return int(db.expire_at(args[0], db.now + _ttl(args[1], "pexpire")))


@command("EXPIRE", 2, 2)
def _expire(db: Database, args: Args) -> int:
    return int(db.expire_at(args[0], db.now + 1000 * _ttl(args[1], "expire")))


@command("PEXPIREAT", 2, 2)
def _pexpireat(db: Database, args: Args) -> int:
    return int(db.expire_at(args[0], _ttl(args[1], "pexpireat")))


def _ttl(text: bytes, name: str) -> int:
    ttl = integer(text)
    if abs(ttl) > 2**62:
        raise CommandError(f"ERR invalid expire time in '{name}' command")
    return ttl


@command("PTTL", 1, 1)
def _pttl(db: Database, args: Args) -> int:
    if db.find(args[0]) is None:
        return -2
    expiry = db.expiry(args[0])
    return -1 if expiry is None else max(expiry - db.now, 0)


@command("TTL", 1, 1)
def _ttl_in_seconds(db: Database, args: Args) -> int:
    ms: int = _pttl(db, args)
    return ms if ms < 0 else (ms + 500) // 1000


@command("DBSIZE", 0, 0)
def _dbsize(db: Database, _: Args) -> int:
    return len(list(db.all_keys()))


@command("FLUSHALL", 0)
@command("FLUSHDB", 0)
def _flush(db: Database, _: Args) -> Status:
    db.clear()
    return OK


@command("SCAN", 1)
def _scan(db: Database, args: Args) -> list[Any]:
    options = _options(args[1:], {b"MATCH": 1, b"COUNT": 1, b"TYPE": 1})
    keys = list(db.all_keys())
    if b"TYPE" in options:
        keys = [key for key in keys if db.kind(key).encode() == options[b"TYPE"][0]]
    return [b"0", _matching(keys, options)]


def _matching(names: Sequence[bytes], options: dict[bytes, list[bytes]]) -> list[bytes]:
    if b"MATCH" not in options:
        return list(names)
    pattern = options[b"MATCH"][0]
    if not pattern.endswith(b"*") or b"*" in pattern[:-1]:
        raise CommandError(f"ERR the model knows no pattern {pattern!r}")
    return [name for name in names if name.startswith(pattern[:-1].replace(b"\\", b""))]


def _options(args: Args, known: dict[bytes, int]) -> dict[bytes, list[bytes]]:
    """Return options by name; ``known`` says how many values each has."""
    options: dict[bytes, list[bytes]] = {}
    at = 0
    while at < len(args):
        name = args[at].upper()
        if name not in known or len(args) - at <= known[name]:
            raise CommandError(SYNTAX)
        options[name] = list(args[at + 1 : at + 1 + known[name]])
        at += 1 + known[name]
    return options


# -- strings ---------------------------------------------------------------------------------------


@command("GET", 1, 1)
def _get(db: Database, args: Args) -> Any:
    return db.get(args[0], bytes)


@command("SET", 2)
def _set(db: Database, args: Args) -> Any:
    key, value = args[:2]
    options = _options(args[2:], {b"PX": 1, b"EX": 1, b"NX": 0, b"XX": 0, b"GET": 0, b"KEEPTTL": 0})
    before = db.get(key, bytes) if b"GET" in options else db.find(key)
    ttl = _set_ttl(options)
    is_refused = before is not None if b"NX" in options else b"XX" in options and before is None
    if not is_refused:
        expiry = db.expiry(key) if b"KEEPTTL" in options else None
        db.put(key, value)
        if ttl is not None:
            expiry = db.now + ttl
        if expiry is not None:
            db.expire_at(key, expiry)
    if b"GET" in options:
        return before
    return None if is_refused else OK


def _set_ttl(options: dict[bytes, list[bytes]]) -> int | None:
    for name, factor in ((b"PX", 1), (b"EX", 1000)):
        if name in options:
            ttl = integer(options[name][0]) * factor
            if ttl <= 0:
                raise CommandError("ERR invalid expire time in 'set' command")
            return ttl
    return None


# -- hashes ----------------------------------------------------------------------------------------


def _hash(db: Database, key: bytes) -> Hash:
    found: Any = db.get(key, dict)
    return {} if found is None else found


@command("HGET", 2, 2)
def _hget(db: Database, args: Args) -> bytes | None:
    return _hash(db, args[0]).get(args[1])


@command("HMGET", 2)
def _hmget(db: Database, args: Args) -> list[bytes | None]:
    fields = _hash(db, args[0])
    return [fields.get(name) for name in args[1:]]


@command("HGETALL", 1, 1)
def _hgetall(db: Database, args: Args) -> list[bytes]:
    return [text for pair in _hash(db, args[0]).items() for text in pair]


@command("HKEYS", 1, 1)
def _hkeys(db: Database, args: Args) -> list[bytes]:
    return list(_hash(db, args[0]))


@command("HLEN", 1, 1)
def _hlen(db: Database, args: Args) -> int:
    return len(_hash(db, args[0]))


@command("HEXISTS", 2, 2)
def _hexists(db: Database, args: Args) -> int:
    return int(args[1] in _hash(db, args[0]))


@command("HSTRLEN", 2, 2)
def _hstrlen(db: Database, args: Args) -> int:
    return len(_hash(db, args[0]).get(args[1], b""))


@command("HSET", 3)
def _hset(db: Database, args: Args) -> int:
    if len(args) % 2 == 0:
        raise CommandError("ERR wrong number of arguments for 'hset' command")
    fields: Any = db.create(args[0], dict)
    before = len(fields)
    fields.update(zip(args[1::2], args[2::2], strict=True))
    return len(fields) - before


@command("HSETNX", 3, 3)
def _hsetnx(db: Database, args: Args) -> int:
    fields: Any = db.create(args[0], dict)
    if args[1] in fields:
        return 0
    fields[args[1]] = args[2]
    return 1


@command("HDEL", 2)
def _hdel(db: Database, args: Args) -> int:
    fields = _hash(db, args[0])
    removed = sum(fields.pop(name, None) is not None for name in args[1:])
    db.drop_empty(args[0])
    return removed


@command("HINCRBY", 3, 3)
def _hincrby(db: Database, args: Args) -> int:
    by = integer(args[2])
    before = integer(_hash(db, args[0]).get(args[1], b"0"), "ERR hash value is not an integer")
    after = before + by
    if not -(2**63) <= after < 2**63:
        raise CommandError("ERR increment or decrement would overflow")
    fields: Any = db.create(args[0], dict)
    fields[args[1]] = b"%d" % after
    return after


@command("HRANDFIELD", 2, 2)
def _hrandfield(db: Database, args: Args) -> list[bytes]:
    """Return the first fields over and over, where the server draws any of them."""
    count = integer(args[1])
    names = list(_hash(db, args[0]))
    if count >= 0 or not names:
        return names[:count]
    return [names[number % len(names)] for number in range(-count)]


@command("HSCAN", 2)
def _hscan(db: Database, args: Args) -> list[Any]:
    options = _options(args[2:], {b"MATCH": 1, b"COUNT": 1})
    fields = _hash(db, args[0])
    return [
        b"0",
        [text for name in _matching(list(fields), options) for text in (name, fields[name])],
    ]


# -- lists and sets --------------------------------------------------------------------------------


def _list(db: Database, key: bytes) -> List:
    found: Any = db.get(key, deque)
    return deque() if found is None else found


@command("LPUSH", 2)
def _lpush(db: Database, args: Args) -> int:
    values: Any = db.create(args[0], deque)
    values.extendleft(args[1:])
    db.note_pushed(args[0], args[1:])
    return len(values)


@command("RPUSH", 2)
def _rpush(db: Database, args: Args) -> int:
    values: Any = db.create(args[0], deque)
    values.extend(args[1:])
    db.note_pushed(args[0], args[1:])
    return len(values)


@command("LLEN", 1, 1)
def _llen(db: Database, args: Args) -> int:
    return len(_list(db, args[0]))


@command("RPOP", 1, 1)
def _rpop(db: Database, args: Args) -> bytes | None:
    values = _list(db, args[0])
    value = values.pop() if values else None
    db.drop_empty(args[0])
    return value


@command("LRANGE", 3, 3)
def _lrange(db: Database, args: Args) -> list[bytes]:
    bounds = integer(args[1]), integer(args[2])
    values = list(_list(db, args[0]))
    first, last = _ranks(*bounds, len(values))
    return values[first : last + 1]


@command("LREM", 3, 3)
def _lrem(db: Database, args: Args) -> int:
    values = _list(db, args[0])
    count = integer(args[1])
    if count < 0:
        raise CommandError("ERR the model removes from the left alone")
    removed = 0
    while args[2] in values and (not count or removed < count):
        values.remove(args[2])
        removed += 1
    db.drop_empty(args[0])
    return removed


@command("SADD", 2)
def _sadd(db: Database, args: Args) -> int:
    members: Any = db.create(args[0], Members)
    before = len(members)
    members.update(dict.fromkeys(args[1:]))
    return len(members) - before


@command("SMEMBERS", 1, 1)
def _smembers(db: Database, args: Args) -> list[bytes]:
    return list(db.get(args[0], Members) or ())  # type: ignore[arg-type]


# -- sorted sets -----------------------------------------------------------------------------------


def _zset(db: Database, key: bytes) -> SortedSet:
    found: Any = db.get(key, SortedSet)
    return SortedSet() if found is None else found


def _ranks(start: int, stop: int, length: int) -> tuple[int, int]:
    """Return the ranks of the first and the last item; negative ones are counted from the end."""
    if start < 0:
        start = max(start + length, 0)
    if stop < 0:
        stop = max(stop + length, -1)
    return start, min(stop, length - 1)


@command("ZADD", 3)
def _zadd(db: Database, args: Args) -> int:
    pairs = args[1:]
    condition = pairs[0].upper()
    if condition in (b"NX", b"XX", b"LT"):
        pairs = pairs[1:]
    if not pairs or len(pairs) % 2:
        raise CommandError(SYNTAX)
    scores = [score(text) for text in pairs[::2]]
    members: Any = db.create(args[0], SortedSet)
    added = 0
    for value, member in zip(scores, pairs[1::2], strict=True):
        before = members.scores.get(member)
        is_unwanted = condition == (b"XX" if before is None else b"NX")
        is_later = condition == b"LT" and before is not None and value >= before
        if not is_unwanted and not is_later:
            added += members.put(member, value)
    db.drop_empty(args[0])
    return added


@command("ZREM", 2)
def _zrem(db: Database, args: Args) -> int:
    members = _zset(db, args[0])
    removed = sum(members.remove(member) for member in args[1:])
    db.drop_empty(args[0])
    return removed


@command("ZCARD", 1, 1)
def _zcard(db: Database, args: Args) -> int:
    return len(_zset(db, args[0]))


@command("ZSCORE", 2, 2)
def _zscore(db: Database, args: Args) -> bytes | None:
    found = _zset(db, args[0]).scores.get(args[1])
    return None if found is None else format_score(found)


@command("ZMSCORE", 2)
def _zmscore(db: Database, args: Args) -> list[bytes | None]:
    return [_zscore(db, (args[0], member)) for member in args[1:]]


@command("ZRANK", 2, 2)
def _zrank(db: Database, args: Args) -> int | None:
    return _zset(db, args[0]).rank(args[1])


class Bound(NamedTuple):
    """An end of a range of scores or members."""

    at: Any
    is_open: bool = False

    def admits_from(self, value: Any) -> bool:
        return bool(value > self.at if self.is_open else value >= self.at)

    def admits_to(self, value: Any) -> bool:
        return bool(value < self.at if self.is_open else value <= self.at)


def _score_bound(text: bytes) -> Bound:
    """Read the end of a range of scores: no text at all means 0, and a number too large for a double is infinite."""
    number = text.removeprefix(b"(") or b"0"
    return Bound(score(number, NOT_A_RANGE, may_overflow=True), text.startswith(b"("))


Pairs = list[tuple[float, bytes]]

_score_of = itemgetter(0)


def _within_scores(db: Database, key: bytes, least: bytes, most: bytes) -> Pairs:
    low, high = _score_bound(least), _score_bound(most)
    pairs = _zset(db, key).ordered
    first = (bisect_right if low.is_open else bisect_left)(pairs, low.at, key=_score_of)
    last = (bisect_left if high.is_open else bisect_right)(pairs, high.at, key=_score_of)
    return pairs[first:last]


def _within_ranks(db: Database, key: bytes, first: bytes, last: bytes, *, is_reversed: bool) -> Pairs:
    bounds = integer(first), integer(last)
    pairs = _zset(db, key).ordered
    start, stop = _ranks(*bounds, len(pairs))
    return (pairs[::-1] if is_reversed else pairs)[start : stop + 1]


def _within_names(db: Database, key: bytes, least: bytes, most: bytes) -> Pairs:
    for text in (least, most):
        if text not in (b"-", b"+") and text[:1] not in (b"[", b"("):
            raise CommandError(NOT_A_STRING_RANGE)
    members = _zset(db, key)
    if least == b"+" or most == b"-":
        return []
    low, high = (Bound(text[1:], text.startswith(b"(")) for text in (least, most))

    def is_above(pair: tuple[float, bytes]) -> bool:
        return least == b"-" or low.admits_from(pair[1])

    def is_below(pair: tuple[float, bytes]) -> bool:
        return most == b"+" or high.admits_to(pair[1])

    pairs = members.ordered
    # The server takes the names for sorted, even where members have different scores.
    if not pairs or not is_above(pairs[-1]) or not is_below(pairs[0]):
        return []
    return list(takewhile(is_below, dropwhile(lambda pair: not is_above(pair), pairs)))


@command("ZCOUNT", 3, 3)
def _zcount(db: Database, args: Args) -> int:
    return len(_within_scores(db, *args))


def _with_scores(pairs: Pairs, is_asked: bool) -> list[bytes]:
    if not is_asked:
        return [member for _, member in pairs]
    return [text for value, member in pairs for text in (member, format_score(value))]


def _limited(pairs: Pairs, limit: list[bytes] | None) -> Pairs:
    if limit is None:
        return pairs
    offset, count = integer(limit[0]), integer(limit[1])
    if offset < 0:
        return []
    return pairs[offset:] if count < 0 else pairs[offset : offset + count]


@command("ZRANGE", 3)
def _zrange(db: Database, args: Args) -> list[bytes]:
    known = {b"BYSCORE": 0, b"BYLEX": 0, b"REV": 0, b"LIMIT": 2, b"WITHSCORES": 0}
    options = _options(args[3:], known)
    if b"LIMIT" in options:
        integer(options[b"LIMIT"][0])
        integer(options[b"LIMIT"][1])
    least, most = args[1:3]
    is_reversed = b"REV" in options
    if is_reversed and len(options.keys() & {b"BYSCORE", b"BYLEX"}):
        least, most = most, least
    if b"BYSCORE" in options:
        pairs = _within_scores(db, args[0], least, most)
    elif b"BYLEX" in options:
        pairs = _within_names(db, args[0], least, most)
    else:
        pairs = _within_ranks(db, args[0], least, most, is_reversed=is_reversed)
        is_reversed = False
    pairs = pairs[::-1] if is_reversed else pairs
    return _with_scores(_limited(pairs, options.get(b"LIMIT")), b"WITHSCORES" in options)


@command("ZREVRANGE", 3, 4)
def _zrevrange(db: Database, args: Args) -> list[bytes]:
    return _zrange(db, [*args[:3], b"REV", *args[3:]])  # type: ignore[no-any-return]


@command("ZRANGEBYSCORE", 3)
def _zrangebyscore(db: Database, args: Args) -> list[bytes]:
    return _zrange(db, [*args[:3], b"BYSCORE", *args[3:]])  # type: ignore[no-any-return]


def _remove_pairs(db: Database, key: bytes, pairs: Pairs) -> int:
    members = _zset(db, key)
    for _, member in pairs:
        members.remove(member)
    db.drop_empty(key)
    return len(pairs)


@command("ZREMRANGEBYSCORE", 3, 3)
def _zremrangebyscore(db: Database, args: Args) -> int:
    return _remove_pairs(db, args[0], _within_scores(db, *args))


@command("ZREMRANGEBYRANK", 3, 3)
def _zremrangebyrank(db: Database, args: Args) -> int:
    return _remove_pairs(db, args[0], _within_ranks(db, *args, is_reversed=False))


@command("ZSCAN", 2)
def _zscan(db: Database, args: Args) -> list[Any]:
    options = _options(args[2:], {b"MATCH": 1, b"COUNT": 1})
    members = _zset(db, args[0])
    names = set(_matching(list(members.scores), options))
    return [b"0", _with_scores([pair for pair in members.ordered if pair[1] in names], True)]


# -- streams ---------------------------------------------------------------------------------------


def _stream(db: Database, key: bytes) -> Stream:
    found: Any = db.get(key, Stream)
    return Stream() if found is None else found


@command("XADD", 4)
def _xadd(db: Database, args: Args) -> bytes:
    at, length, is_about = 1, None, False
    if args[1].upper() == b"MAXLEN":
        is_about = args[2] == b"~"
        length = integer(args[2 + is_about])
        at = 3 + is_about
    fields = list(args[at + 1 :])
    if args[at] != b"*" or not fields or len(fields) % 2:
        raise CommandError("ERR wrong number of arguments for 'xadd' command")
    stream: Any = db.create(args[0], Stream)
    identity: bytes = stream.append(db.now, fields)
    if length is not None:
        stream.trim(length, is_about=is_about)
    return identity


@command("XLEN", 1, 1)
def _xlen(db: Database, args: Args) -> int:
    return len(_stream(db, args[0]))


def _id_bound(text: bytes, number: int) -> Bound:
    if text in (b"-", b"+"):
        return Bound((0, 0) if text == b"-" else (2**64, 0))
    ms, _, part = text.removeprefix(b"(").partition(b"-")
    at = (integer(ms, BAD_ID), integer(part, BAD_ID) if part else number)
    return Bound(at, text.startswith(b"("))


def _lines_within(db: Database, key: bytes, low: Bound, high: Bound) -> list[list[Any]]:
    lines = _stream(db, key).lines
    return [[b"%d-%d" % at, list(fields)] for at, fields in lines if low.admits_from(at) and high.admits_to(at)]


def _count(options: Args) -> int | None:
    count = _options(options, {b"COUNT": 1}).get(b"COUNT")
    return None if count is None else max(integer(count[0]), 0)


def _counted(lines: list[list[Any]], count: int | None, *, exists: bool) -> list[list[Any]] | None:
    if count is None:
        return lines
    return lines[:count] if count or not exists else None


@command("XRANGE", 3, 5)
def _xrange(db: Database, args: Args) -> Any:
    low, high = _id_bound(args[1], 0), _id_bound(args[2], 2**64)
    count = _count(args[3:])
    lines = _lines_within(db, args[0], low, high)
    return _counted(lines, count, exists=db.find(args[0]) is not None)


@command("XREVRANGE", 3, 5)
def _xrevrange(db: Database, args: Args) -> Any:
    low, high = _id_bound(args[2], 0), _id_bound(args[1], 2**64)
    count = _count(args[3:])
    lines = _lines_within(db, args[0], low, high)
    return _counted(lines[::-1], count, exists=db.find(args[0]) is not None)


# -- the server ------------------------------------------------------------------------------------


@command("TIME", 0, 0)
def _time(db: Database, _: Args) -> list[bytes]:
    seconds, micros = divmod(db.now_us(), 1_000_000)
    return [b"%d" % seconds, b"%d" % micros]


#: Commands that may need memory.
GROWING = {b"SET", b"HSET", b"HSETNX", b"HINCRBY", b"LPUSH", b"RPUSH", b"SADD", b"ZADD", b"XADD"}

#: All commands that write.
WRITING = GROWING | {
    b"DEL",
    b"PEXPIRE",
    b"PEXPIREAT",
    b"EXPIRE",
    b"HDEL",
    b"LREM",
    b"RPOP",
    b"ZREM",
    b"ZREMRANGEBYRANK",
    b"ZREMRANGEBYSCORE",
}


def check_refusal(db: Database, name: bytes) -> None:
    """Raise CommandError if the server takes no command of this name just now."""
    if db.refusal is None:
        return
    refused = WRITING if db.refusal is Refusal.READ_ONLY else GROWING
    if name in refused:
        raise CommandError(db.refusal.value)


def execute(db: Database, args: Args) -> Any:
    """Run a command; raise CommandError where the server would reply with an error."""
    name = args[0].upper()
    found = COMMANDS.get(name)
    if found is None:
        words = b" ".join(b"'%s'" % arg for arg in args[1:4]).decode(errors="replace")
        unknown = args[0].decode(errors="replace")
        raise CommandError(f"ERR unknown command '{unknown}', with args beginning with: {words} ")
    if not found.least <= len(args) - 1 <= found.most:
        text = name.decode().lower()
        raise CommandError(f"ERR wrong number of arguments for '{text}' command")
    return found.run(db, args[1:])
