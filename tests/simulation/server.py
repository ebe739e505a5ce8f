"""A model of the server: one database, scripts and channels, on a clock that is handed in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.simulation.commands import OK, Status, check_refusal, execute
from tests.simulation.numbers import integer
from tests.simulation.scripting import Scripting
from tests.simulation.values import CommandError, Database

#: What the server says of itself where the package asks.
_INFO = b"# Server\r\nredis_version:7.2.4\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\nrole:master\r\n"


class ModelServer:
    """Answers commands one at a time.

    Parameters:
        now_us: returns the time of the server in epoch microseconds; it may be set back.
    """

    def __init__(self, now_us: Callable[[], int]) -> None:
        self.database = Database(now_us)
        self.scripting = Scripting(self.database, self.publish)
        #: Called for each message of a channel; returns how many have subscribed.
        self.deliver: Callable[[bytes, bytes], int] = lambda _channel, _message: 0
        #: Asked for each message that is pushed by itself, whether the server refuses it.
        self.refuses: Callable[[], bool] = lambda: False

    def reply(self, args: Sequence[bytes]) -> Any:
        """Return the reply to one command; an error is a CommandError."""
        try:
            return self._reply(args)
        except CommandError as exc:
            return exc

    def publish(self, channel: bytes, message: bytes) -> int:
        return self.deliver(channel, message)

    def restart(self, *, with_data: bool) -> None:
        """Forget all scripts, and without its data all keys."""
        self.scripting.forget()
        if not with_data:
            self.database.clear()

    def _reply(self, args: Sequence[bytes]) -> Any:
        name = args[0].upper()
        handler = _OWN.get(name)
        if handler is not None:
            return handler(self, args[1:])
        if name == b"LPUSH" and self.refuses():
            raise CommandError("ERR the message is too large")
        if self.database.refusal is not None:
            check_refusal(self.database, name)
        return execute(self.database, args)

    def _evalsha(self, args: Sequence[bytes]) -> Any:
        count = integer(args[1])
        return self.scripting.run(args[0], args[2 : 2 + count], args[2 + count :])

    def _eval(self, args: Sequence[bytes]) -> Any:
        return self._evalsha([self.scripting.load(args[0]), *args[1:]])

    def _script(self, args: Sequence[bytes]) -> Any:
        if args[0].upper() != b"LOAD":
            raise CommandError("ERR the model knows SCRIPT LOAD alone")
        return self.scripting.load(args[1])

    def _publish(self, args: Sequence[bytes]) -> int:
        return self.publish(args[0], args[1])

    def _ok(self, _: Sequence[bytes]) -> Status:
        return OK

    def _ping(self, _: Sequence[bytes]) -> Status:
        return Status(b"PONG")

    def _info(self, _: Sequence[bytes]) -> bytes:
        return _INFO

    def _config(self, args: Sequence[bytes]) -> list[bytes]:
        return [args[1], b""]


_OWN: dict[bytes, Callable[[ModelServer, Sequence[bytes]], Any]] = {
    b"EVALSHA": ModelServer._evalsha,
    b"EVAL": ModelServer._eval,
    b"SCRIPT": ModelServer._script,
    b"PUBLISH": ModelServer._publish,
    b"PING": ModelServer._ping,
    b"INFO": ModelServer._info,
    b"CONFIG": ModelServer._config,
    b"CLIENT": ModelServer._ok,
    b"SELECT": ModelServer._ok,
    b"AUTH": ModelServer._ok,
}
