"""The child process that sends notices: the only one that imports apprise, so that what hangs there delays no beat.

A line of JSON comes on its standard input: ``urls``, and ``title`` and ``body`` of a notice. Without a notice the URLs
are only looked at. The place of each that is right, and whose service has taken the notice, is printed at once.
"""

from __future__ import annotations

import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

# Where chat services begin a mention (@everyone, <@7>, <!channel>, <users/all>) or a Markdown link.
_MARKUP = re.compile(r"(?<!\w)@(?=[\w!&])|<(?=[!#]|users/)|\](?=\()")
_ZERO_WIDTH_SPACE = "\u200b"


def main() -> None:
    import apprise

    def send(place: int, url: str) -> None:
        service, sender = apprise.Apprise.instantiate(url), apprise.Apprise()
        if service is None or not sender.add(service):
            return
        # Without a format apprise takes the text for the markup of each service, such as HTML in a mail.
        if "body" in asked and not sender.notify(title=title, body=body, body_format="text"):
            return
        print(f"{place}\n", end="", flush=True)

    asked: dict[str, Any] = json.load(sys.stdin)
    title = _inert(asked.get("title", ""))
    body = _inert(asked.get("body", ""))
    # Each by itself, so that one that fails or hangs keeps none of the others from its notice.
    with ThreadPoolExecutor(len(asked["urls"])) as threads:
        for place, url in enumerate(asked["urls"]):
            threads.submit(send, place, url)


def _inert(text: str) -> str:
    """Return text that looks the same without mentions and links, as errors may quote anybody."""
    return _MARKUP.sub(lambda match: match[0] + _ZERO_WIDTH_SPACE, text)


if __name__ == "__main__":
    main()
