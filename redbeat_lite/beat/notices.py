"""Notices of incidents, by the services that apprise knows; sent by a child process of their own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from celery import Celery
from celery.utils.log import get_logger

from ..errors import ConfigurationError
from ..events import Hooks, IncidentClosed, IncidentOpened, subscribers
from ..settings import Settings
from ..urls import scheme_of

logger = get_logger(f"celery.{__name__}")

#: Seconds after which the child is ended.
TIMEOUT = 30.0

#: How often a notice is tried, and the seconds between two tries.
_TRIES, _PAUSE = 3, 10.0

_CHILD = (sys.executable, "-m", f"{__package__}.send_notices")


def hooks_of(app: Celery, settings: Settings) -> list[Hooks]:
    """Whom a beat of this app tells: the subscribers, and those of ``redbeat_lite_notify``.

    Raises ConfigurationError: apprise is not installed, or a URL is none of its.
    """
    return [*subscribers(app), *([Notices(settings.notify)] if settings.notify else [])]


class Notices(Hooks):
    """Sends a notice for each incident that is opened or closed. The announcer gives it a thread of its own."""

    def __init__(self, urls: Sequence[str]) -> None:
        _check(tuple(urls))
        self._urls = [*urls]

    def incident_opened(self, event: IncidentOpened) -> None:
        self._send(f"[{event.id}] {_what(event)}", f"{event.text}\nsince {event.since.isoformat(timespec='seconds')}")

    def incident_closed(self, event: IncidentClosed) -> None:
        minutes = (event.until - event.since).total_seconds() / 60
        self._send(f"[{event.id}] over: {_what(event)}", f"{event.text}\nover after {minutes:.1f} minutes")

    def _send(self, title: str, body: str) -> None:
        urls = self._urls
        for left in reversed(range(_TRIES)):
            _, taken = _child({"urls": urls, "title": title, "body": body})
            urls = [url for place, url in enumerate(urls) if place not in taken]
            if not urls:
                return
            if left:
                time.sleep(_PAUSE)
        # Nothing of what the child says: it may quote a URL.
        logger.error("beat: a notice could not be sent in %d tries: %s", _TRIES, title)


def _what(event: IncidentOpened | IncidentClosed) -> str:
    return f"{event.kind} {event.entry}" if event.entry else event.kind


def _child(asked: dict[str, Any]) -> tuple[int | None, set[int]]:
    """Run the child; its exit code, ``None`` if it did not start or was ended, and the places of URLs that it named."""
    try:
        # On its standard input, as others may read what a process was called with.
        asks = json.dumps(asked).encode()
        ended = subprocess.run(_CHILD, input=asks, capture_output=True, timeout=TIMEOUT, check=False)
        code, said = ended.returncode, ended.stdout
    except subprocess.TimeoutExpired as exc:
        code, said = None, exc.stdout or b""
    except OSError:  # no memory, or too many processes: for the moment, perhaps
        code, said = None, b""
    return code, {int(place) for place in said.split() if place.isdigit()}


@lru_cache(maxsize=8)
def _check(urls: tuple[str, ...]) -> None:
    if find_spec("apprise") is None:
        raise ConfigurationError(
            "redbeat_lite_notify needs the package apprise, which is not installed; in the checkout of redbeat_lite: "
            "pip install '.[notify]'"
        )
    code, known = _child({"urls": urls})
    if code is None:
        return  # Nobody can tell on a machine that is so slow, and a beat that does not run helps nobody.
    if code:
        raise ConfigurationError("redbeat_lite_notify: apprise cannot be used; does `import apprise` work?")
    for place in sorted({*range(len(urls))} - known):
        # Of the URL its scheme alone: any part of it may be a secret.
        what = f"URLs that apprise knows, and number {place + 1}, of {scheme_of(urls[place])!r}, is none"
        raise ConfigurationError(f"redbeat_lite_notify: expected {what}")
