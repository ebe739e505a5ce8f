"""Notices of incidents, sent by the services that apprise supports."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from celery.utils.log import get_logger

from .._base.errors import ConfigurationError
from .._base.urls import scheme_of
from ..events import Hooks, IncidentClosed, IncidentOpened

logger = get_logger(f"celery.{__name__}")

#: Maximum number of attempts to send a notice.
_TRIES = 3

#: Seconds between two attempts.
_PAUSE = 10.0

#: Loggers whose lines may quote the URL of a service, which is a secret.
_INDISCREET = ("apprise", "urllib3")

# Characters that begin a mention in chat services (@everyone, <@7>, <!channel>, <users/all>), or
# that end the text of a link in Markdown, before its address.
_MARKUP = re.compile(r"(?<!\w)@(?=[\w!&])|<(?=[!#]|users/)|\](?=\()")
_ZERO_WIDTH_SPACE = "\u200b"


def notices_by(urls: Sequence[str]) -> Iterator[Hooks]:
    """Yield hooks that send notices, one :class:`Notices` for each URL.

    The announcer gives each of them a thread, so a service that hangs does not delay the others.

    Raises:
        ConfigurationError: apprise is not installed, or does not support a URL.
    """
    if not urls:
        return
    try:
        import apprise
    except ImportError as exc:
        raise ConfigurationError(
            f"redbeat_lite_notify needs the package apprise, which cannot be imported ({exc}); "
            "in the checkout of redbeat_lite: pip install '.[notify]'"
        ) from None
    for name in _INDISCREET:  # Their lines may quote a secret URL.
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    for number, url in enumerate(urls, 1):
        scheme = scheme_of(url)
        sender = apprise.Apprise()
        # Pass a list, because apprise would split a text at its commas.
        if not sender.add([url]):
            # Show only the scheme of the URL, because any other part may be a secret.
            raise ConfigurationError(
                "redbeat_lite_notify: expected URLs that apprise supports; "
                f"it does not support URL {number}, with the scheme {scheme!r}"
            )
        yield Notices(sender, scheme)


@dataclass(eq=False)
class Notices(Hooks):
    """Hooks that send a notice of each opened or closed incident to one service.

    Parameters:
        sender: an ``Apprise`` with the service.
        scheme: scheme of the service's URL, for the log.
    """

    sender: Any
    scheme: str

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
        """Send a notice, and try again if the service does not accept it."""
        # The texts may quote an error, and an error may quote the input of anybody. Mentions and
        # links from there must have no effect.
        title = _inert(title)
        body = _inert(body)
        for attempt in range(_TRIES):
            if attempt:
                time.sleep(_PAUSE)
            # Without a format, apprise would read the text as markup of the service, such as HTML.
            if self.sender.notify(title=title, body=body, body_format="text"):
                return
        logger.error(
            "beat: a notice could not be sent by %r in %d tries: %s", self.scheme, _TRIES, title
        )


def _subject(event: IncidentOpened | IncidentClosed) -> str:
    return f"{event.kind} {event.entry}" if event.entry else event.kind


def _inert(text: str) -> str:
    """Return a text that looks the same, but whose mentions and links have no effect.

    A zero-width space after each match of ``_MARKUP`` keeps chat services from recognizing it.
    """
    return _MARKUP.sub(rf"\g<0>{_ZERO_WIDTH_SPACE}", text)
