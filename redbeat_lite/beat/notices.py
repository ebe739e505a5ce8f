"""Notices of incidents, which a child process sends by the services that apprise supports."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, NamedTuple

from celery import Celery
from celery.utils.log import get_logger

from .._base.errors import ConfigurationError
from .._base.urls import scheme_of
from ..events import Hooks, IncidentClosed, IncidentOpened, subscribers
from ..settings import Settings

logger = get_logger(f"celery.{__name__}")

#: Seconds after which the child process is killed.
TIMEOUT = 30.0

#: Maximum number of attempts to send a notice.
_TRIES = 3

#: Seconds between two attempts.
_PAUSE = 10.0

_CHILD = (sys.executable, "-m", f"{__package__}.send_notices")


def hooks_of(app: Celery, settings: Settings) -> list[Hooks]:
    """Return the hooks of a beat: the app's subscribers, and notices by ``redbeat_lite_notify``.

    Raises:
        ConfigurationError: apprise is not installed, or does not support a URL.
    """
    hooks = [*subscribers(app)]
    if settings.notify:
        hooks.append(Notices(settings.notify))
    return hooks


class Notices(Hooks):
    """Hooks that send a notice of each opened or closed incident, in a thread of the announcer."""

    def __init__(self, urls: Sequence[str]) -> None:
        _check(tuple(urls))
        self._urls = [*urls]

    def incident_opened(self, event: IncidentOpened) -> None:
        since = event.since.isoformat(timespec="seconds")
        self._send(f"[{event.id}] {_subject(event)}", f"{event.text}\nsince {since}")

    def incident_closed(self, event: IncidentClosed) -> None:
        minutes = (event.until - event.since).total_seconds() / 60
        self._send(
            f"[{event.id}] over: {_subject(event)}",
            f"{event.text}\nover after {minutes:.1f} minutes",
        )

    def _send(self, title: str, body: str) -> None:
        """Send a notice, and try again for the services that have not accepted it."""
        urls = self._urls
        for tries_left in reversed(range(_TRIES)):
            result = _run_child({"urls": urls, "title": title, "body": body})
            urls = [url for place, url in enumerate(urls) if place not in result.accepted]
            if not urls:
                return
            if tries_left:
                time.sleep(_PAUSE)
        # Do not log the errors of the child process, because they may quote a secret URL.
        logger.error("beat: a notice could not be sent in %d tries: %s", _TRIES, title)


def _subject(event: IncidentOpened | IncidentClosed) -> str:
    return f"{event.kind} {event.entry}" if event.entry else event.kind


class _Result(NamedTuple):
    """Result of the child process.

    Parameters:
        code: its exit code; ``None`` if it did not start or was killed.
        accepted: indexes of the URLs that it could use.
    """

    code: int | None
    accepted: set[int]


def _run_child(request: dict[str, Any]) -> _Result:
    """Run a child process with a request, and return which URLs it could use."""
    code: int | None = None
    output = b""
    try:
        # Send the request to the standard input, because other users may read a command line.
        data = json.dumps(request).encode()
        process = subprocess.run(
            _CHILD, input=data, capture_output=True, timeout=TIMEOUT, check=False
        )
        code = process.returncode
        output = process.stdout
    except subprocess.TimeoutExpired as exc:
        output = exc.stdout or b""
    except OSError:
        pass  # The machine may have no memory, or too many processes, at this moment.
    # The child has printed the index of each URL that it could use.
    return _Result(code, {int(place) for place in output.split() if place.isdigit()})


@lru_cache(maxsize=8)
def _check(urls: tuple[str, ...]) -> None:
    """Raise ConfigurationError if apprise does not support one of these URLs."""
    if find_spec("apprise") is None:
        raise ConfigurationError(
            "redbeat_lite_notify needs the package apprise, which is not installed; "
            "in the checkout of redbeat_lite: pip install '.[notify]'"
        )
    result = _run_child({"urls": urls})
    if result.code is None:
        return  # The machine is too slow for the check, but the beat should start.
    if result.code:
        raise ConfigurationError(
            "redbeat_lite_notify: apprise cannot be used; does `import apprise` work?"
        )
    for place, url in enumerate(urls):
        if place not in result.accepted:
            # Show only the scheme of the URL, because any other part may be a secret.
            expected = (
                f"URLs that apprise knows, and number {place + 1}, of {scheme_of(url)!r}, is none"
            )
            raise ConfigurationError(f"redbeat_lite_notify: expected {expected}")
