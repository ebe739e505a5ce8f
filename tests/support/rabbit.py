"""A private RabbitMQ, where one is installed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Self

import kombu

from tests.support.server import Startable, free_port
from tests.support.waiting import eventually

#: The script itself; the one on PATH of some systems is a wrapper that changes the user.
SCRIPT = next(filter(None, map(shutil.which, ["/usr/lib/rabbitmq/bin/rabbitmq-server", "rabbitmq-server"])), None)


class Rabbit(Startable):
    """A RabbitMQ of its own, on free ports, that may be stopped and started with its data."""

    def __init__(self) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="rbl-rabbit-"))
        self.port, self._epmd_port = free_port(), free_port()
        self._env = {
            **os.environ,
            "HOME": str(self._home),
            "ERL_EPMD_PORT": str(self._epmd_port),
            "RABBITMQ_NODENAME": "rbl@localhost",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(self._home / "data"),
            "RABBITMQ_LOG_BASE": str(self._home / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self._home / "plugins"),
        }
        self._process: subprocess.Popen[bytes] | None = None
        # Else Erlang starts one of its own, as a daemon that outlives it.
        self._epmd = subprocess.Popen(["epmd", "-port", str(self._epmd_port)])

    @property
    def url(self) -> str:
        return self.behind(self.port)

    def behind(self, port: int) -> str:
        """Its URL, where it is reached through another port."""
        return f"amqp://guest:guest@127.0.0.1:{port}//"

    def start(self) -> Self:
        assert SCRIPT is not None
        self._process = subprocess.Popen(
            [SCRIPT], env=self._env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        eventually(self._answers, what="an answer of RabbitMQ")
        return self

    def _answers(self) -> bool:
        try:
            with kombu.Connection(self.url, connect_timeout=2) as connection:
                connection.connect()
        except OSError:
            return False
        return True

    def kill(self) -> None:
        """Kill it as a crash would."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """Let it hang: it accepts connections and answers nothing."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGSTOP)

    def destroy(self) -> None:
        self.kill()
        self._epmd.kill()
        self._epmd.wait()
        shutil.rmtree(self._home, ignore_errors=True)
