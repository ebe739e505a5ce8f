"""Runs the package's Lua scripts on the model's commands, by the rules of the server's scripting."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import msgspec
from lupa import lua51  # type: ignore[import-untyped]

from tests.simulation import cjson
from tests.simulation.commands import COMMANDS, WRITING, Status, check_refusal
from tests.simulation.numbers import format_score
from tests.simulation.values import CommandError, Database

#: The part of the scripting environment that is simplest in Lua: errors are tables there.
_PRELUDE = """
local run, encode, decode, unpack_message = ...
local call = pcall
local function flatten(is_done, ...)
  local why = ...
  if not is_done and type(why) == 'table' and why.err then
    return false, why.err
  end
  return is_done, ...
end
-- Valkey's pcall gives the text of an error in the place of its table.
function pcall(...)
  return flatten(call(...))
end
redis = {}
function redis.call(...)
  local reply = run(select('#', ...), ...)
  if type(reply) == 'table' and reply.err then
    error(reply, 0)
  end
  return reply
end
function redis.pcall(...)
  return run(select('#', ...), ...)
end
function redis.error_reply(text)
  return {err = text}
end
function redis.status_reply(text)
  return {ok = text}
end
cjson = {}
function cjson.encode(value)
  local text, why = encode(value)
  if why then
    error(why, 2)
  end
  return text
end
function cjson.decode(text)
  local value, why = decode(text)
  if why then
    error(why, 2)
  end
  return value
end
cmsgpack = {}
function cmsgpack.unpack(text)
  return unpack_message(text)
end
setmetatable(_G, {
  __index = function(_, name)
    error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
  end,
  __newindex = function()
    error('Attempt to modify a readonly table', 2)
  end,
})
"""

_RUN = """
function(script, keys, args)
  rawset(_G, 'KEYS', keys)
  rawset(_G, 'ARGV', args)
  local is_done, value = pcall(script)
  return is_done, value or false
end
"""

#: Returns the error, the status and the items of a table that is a reply.
_UNPACK = """
function(reply)
  local length = 0
  while reply[length + 1] ~= nil do
    length = length + 1
  end
  return reply.err or false, reply.ok or false, unpack(reply, 1, length)
end
"""

_NOT_ARGUMENTS = "ERR Command arguments must be strings or integers"


def _to_integer(value: float) -> int:
    """Return what C makes of a double: numbers that are too large become the least of all."""
    is_small = math.isfinite(value) and abs(value) < 2**63
    return int(value) if is_small else -(2**63)


class ScriptError(CommandError):
    """A script ended with an error."""


class Interpreter:
    """One Lua interpreter for all servers. No script can change its globals, so nothing is left of one."""

    def __init__(self) -> None:
        self.lua = lua51.LuaRuntime(encoding=None, unpack_returned_tuples=True)
        #: Scripts by their SHA-1.
        self._compiled: dict[bytes, Any] = {}
        #: The server whose script runs.
        self.server: Scripting
        self.lua.execute(_PRELUDE, self._run_command, self._encode, self._decode, self._unpack)
        self.run = self.lua.eval(_RUN)
        self.unpack = self.lua.eval(_UNPACK)
        self._load = self.lua.eval("function(text) return loadstring(text, '@user_script') end")

    def compile(self, text: bytes) -> tuple[bytes, Any]:
        """Compile a script; return its SHA-1 and its function."""
        sha = hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()
        if sha not in self._compiled:
            loaded = self._load(text)
            if isinstance(loaded, tuple):
                raise CommandError(f"ERR Error compiling script (new function): {loaded[1].decode()}")
            self._compiled[sha] = loaded
        return sha, self._compiled[sha]

    # -- what Lua calls ----------------------------------------------------------------------------

    def _run_command(self, count: int, *args: Any) -> Any:
        if len(args) < count:
            args = (*args, *[None] * (count - len(args)))
        try:
            words = [arg if type(arg) is bytes else self._to_word(arg) for arg in args]
            reply = self.server.execute(words)
        except CommandError as exc:
            return self.lua.table_from({b"err": str(exc).encode()})
        # Most replies are such, and Lua takes them as they are.
        kind = type(reply)
        return reply if kind is bytes or kind is int else self._to_lua(reply)

    @staticmethod
    def _to_word(value: Any) -> bytes:
        if type(value) in (int, float):
            return format_score(value)
        raise CommandError(_NOT_ARGUMENTS)

    def _to_lua(self, reply: Any) -> Any:
        if reply is None:
            return False
        if isinstance(reply, Status):
            return self.lua.table_from({b"ok": bytes(reply)})
        if isinstance(reply, list):
            items = [item if type(item) is bytes else self._to_lua(item) for item in reply]
            return self.lua.table_from(items)
        return reply

    def _encode(self, value: Any) -> tuple[bytes | None, bytes | None]:
        try:
            return cjson.encode(value, lambda item: lua51.lua_type(item) == "table"), None
        except cjson.JsonError as exc:
            return None, str(exc).encode()

    def _decode(self, text: bytes | bool) -> tuple[Any, bytes | None]:
        try:
            return self._from_json(cjson.decode(text)), None
        except cjson.JsonError as exc:
            return None, str(exc).encode()

    def _unpack(self, text: bytes) -> Any:
        return self._from_json(cjson.with_bytes(msgspec.msgpack.decode(text)))

    def _from_json(self, value: Any) -> Any:
        if isinstance(value, list):
            return self.lua.table_from([self._from_json(item) for item in value])
        if isinstance(value, dict):
            return self.lua.table_from({name: self._from_json(item) for name, item in value.items()})
        # All numbers of Lua are doubles.
        return float(value) if type(value) is int else value


_interpreter = cache(Interpreter)


class Scripting:
    """The scripts of one server.

    Parameters:
        publish: hands a message to the subscribers of a channel; returns how many there are.
    """

    def __init__(self, database: Database, publish: Callable[[bytes, bytes], int]) -> None:
        self._database = database
        self._publish = publish
        self._interpreter = _interpreter()
        self._lua = self._interpreter.lua
        self._scripts: dict[bytes, Any] = {}
        self._has_written = False

    def load(self, text: bytes) -> bytes:
        """Compile a script; return its SHA-1."""
        sha, script = self._interpreter.compile(text)
        self._scripts[sha] = script
        return sha

    def forget(self) -> None:
        """Forget all scripts, as a server that is restarted does."""
        self._scripts.clear()

    def run(self, sha: bytes, keys: Sequence[bytes], args: Sequence[bytes]) -> Any:
        """Run a script; raise CommandError if it is not known or ends with an error."""
        script = self._scripts.get(sha.lower())
        if script is None:
            raise CommandError("NOSCRIPT No matching script.")
        self._has_written = False
        self._interpreter.server = self
        table = self._lua.table_from
        is_done, value = self._interpreter.run(script, table(list(keys)), table(list(args)))
        if not is_done:
            raise ScriptError(self._error_text(value, sha))
        return self._to_reply(value)

    def _error_text(self, value: Any, sha: bytes) -> str:
        if isinstance(value, Exception):
            raise value  # A fault of the model, or a command that it has not.
        text = str(value.decode(errors="replace"))
        code = "" if text.partition(" ")[0].isupper() else "ERR "
        return f"{code}{text} script: {sha.decode()}"

    def execute(self, words: Sequence[bytes]) -> Any:
        """Run a command for the script that runs."""
        known = COMMANDS.get(words[0]) if words else None
        if known is None:
            return self._run_unknown(words)
        run, least, most = known
        if not least <= len(words) - 1 <= most:
            raise CommandError("ERR Wrong number of args calling command from script")
        if self._database.refusal is not None and not self._has_written:
            # A script that has begun to write may end, whatever the server refuses.
            check_refusal(self._database, words[0])
            self._has_written = words[0] in WRITING
        return run(self._database, words[1:])

    def _run_unknown(self, words: Sequence[bytes]) -> Any:
        if not words:
            raise CommandError("ERR Please specify at least one argument for this redis.call() call")
        name = words[0].upper()
        if name == b"PUBLISH":
            return self._publish(words[1], words[2])
        if name in COMMANDS and name != words[0]:
            return self.execute([name, *words[1:]])
        raise CommandError("ERR Unknown command called from script")

    def _to_reply(self, value: Any) -> Any:
        if type(value) in (bytes, int):
            return value
        if value is None or value is False:
            return None
        if value is True:
            return 1
        if isinstance(value, int | float):
            return _to_integer(value)
        if isinstance(value, bytes):
            return value
        if lua51.lua_type(value) != "table":
            return None
        return self._table_to_reply(value)

    def _table_to_reply(self, table: Any) -> Any:
        error, status, *items = self._interpreter.unpack(table)
        if error is not False:
            return CommandError(error.decode(errors="replace"))
        if status is not False:
            return Status(status)
        return [self._to_reply(item) for item in items]
