"""Child process that sends notices.

Only this process imports apprise, so a service that hangs delays no beat.
It reads one line of JSON from its standard input, with ``urls``, and with ``title`` and ``body`` of
a notice. Without a notice it only checks the URLs. It prints the place of each URL that is right,
and whose service has taken the notice, as soon as that is known.
"""

from __future__ import annotations

import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

# Beginnings of a mention in chat services (@everyone, <@7>, <!channel>, <users/all>), or of a
# Markdown link.
_MARKUP = re.compile(r"(?<!\w)@(?=[\w!&])|<(?=[!#]|users/)|\](?=\()")
_ZERO_WIDTH_SPACE = "\u200b"


def main() -> None:
    """Send the notice of a request to its URLs. Print the place of each URL that received it.

    A request without a body only checks the URLs.
    """
    import apprise

    request: dict[str, Any] = json.load(sys.stdin)
    title = _inert(request.get("title", ""))
    body = _inert(request.get("body", ""))

    def send(place: int, url: str) -> None:
        service = apprise.Apprise.instantiate(url)
        sender = apprise.Apprise()
        if service is None or not sender.add(service):
            return
        # Without a format, apprise would take the text for the markup of each service, such as HTML
        # in a mail.
        if "body" in request and not sender.notify(title=title, body=body, body_format="text"):
            return
        print(f"{place}\n", end="", flush=True)

    # Each service has a thread, so that one that fails or hangs does not affect the others.
    with ThreadPoolExecutor(len(request["urls"])) as threads:
        for place, url in enumerate(request["urls"]):
            threads.submit(send, place, url)


def _inert(text: str) -> str:
    """Return text that looks the same but has no mentions and links.

    Error texts may quote any user.
    """
    return _MARKUP.sub(lambda match: match[0] + _ZERO_WIDTH_SPACE, text)


if __name__ == "__main__":
    main()
