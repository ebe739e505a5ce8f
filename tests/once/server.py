"""A private Valkey server on a unix socket, which a test may stop, kill and start again."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import redis

from tests.support.nursery import Child, nursery
from tests.support.server import binary


class Server:
    """Starts on creation; everything it writes lies in a directory of its own."""

    def __init__(self, *options: str) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="once-"))
        self.socket = self.directory / "s"
        self._options = options
        self._process: Child | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"redis+socket://{self.socket}"

    def client(self, **options: Any) -> redis.Redis:
        return redis.Redis(unix_socket_path=str(self.socket), decode_responses=True, **options)

    def start(self) -> None:
        command = [
            binary(),
            "--port",
            "0",
            "--unixsocket",
            str(self.socket),
            "--dir",
            str(self.directory),
        ]
        command += ["--save", "", "--logfile", str(self.directory / "log"), *self._options]
        with Path(os.devnull).open("wb") as nowhere:
            self._process = nursery().start(command, stdout=nowhere)
        deadline = time.monotonic() + 20
        while True:
            try:
                with self.client() as client:
                    client.ping()
                    return
            except redis.exceptions.ConnectionError:
                assert time.monotonic() < deadline, "the server did not start"
                time.sleep(0.02)

    def stop(self) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(20)

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)
