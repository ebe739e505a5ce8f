"""An app whose processes say on stderr which addresses they connect to, each address once."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from celery import Celery

app = Celery("dialling", broker=os.environ["PROJ_URL"])
app.conf.update(json.loads(os.environ["PROJ_CONF"]))

_said: set[Any] = set()


def _say_address(event: str, args: tuple[Any, ...]) -> None:
    if event != "socket.connect" or args[1] in _said:
        return
    _said.add(args[1])
    os.write(2, f"dialled {args[1]!r}\n".encode())


sys.addaudithook(_say_address)


@app.task(name="add", shared=False)
def add() -> None: ...
