"""Child process that sends notices.

Only this process imports apprise, so a service that hangs delays no beat. The process reads JSON
from its standard input, with ``urls``, and with ``title`` and ``body`` of a notice. As soon as the
service of a URL has accepted the notice, the process prints the index of that URL. Without a
notice, it prints the indexes of the URLs that apprise supports.
"""

from __future__ import annotations

import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

# First characters of a mention in chat services (@everyone, <@7>, <!channel>, <users/all>), or of a
# link in Markdown.
_MARKUP = re.compile(r"(?<!\w)@(?=[\w!&])|<(?=[!#]|users/)|\](?=\()")
_ZERO_WIDTH_SPACE = "\u200b"


def main() -> None:
    """Send the notice of the request to its URLs, or check the URLs; see the head of the module."""
    import apprise

    request: dict[str, Any] = json.load(sys.stdin)
    title = _inert(request.get("title", ""))
    body = _inert(request.get("body", ""))

    def send(place: int, url: str) -> None:
        service = apprise.Apprise.instantiate(url)
        sender = apprise.Apprise()
        if service is None or not sender.add(service):
            return
        # Without a format, apprise would read the text as the markup of the service, such as HTML.
        if "body" in request and not sender.notify(title=title, body=body, body_format="text"):
            return
        print(f"{place}\n", end="", flush=True)

    # Each service has a thread, so that a service that hangs does not delay the others.
    with ThreadPoolExecutor(len(request["urls"])) as threads:
        for place, url in enumerate(request["urls"]):
            threads.submit(send, place, url)


def _inert(text: str) -> str:
    """Return a text that looks the same, but whose mentions and links have no effect.

    Error texts may contain mentions, because they may quote the input of anybody.
    """
    return _MARKUP.sub(lambda match: match[0] + _ZERO_WIDTH_SPACE, text)


if __name__ == "__main__":
    main()
