"""The child process that sends notices: the only one that imports apprise, so that what hangs there delays no beat.

A line of JSON comes on its standard input: ``urls``, and ``title`` and ``body`` of a notice. Without a notice the URLs
are only looked at. The place of each that is right, and whose service has taken the notice, is printed at once.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def main() -> None:
    import apprise

    def send(place: int, url: str) -> None:
        service, sender = apprise.Apprise.instantiate(url), apprise.Apprise()
        if service is not None and sender.add(service) and ("body" not in asked or sender.notify(**notice)):
            print(f"{place}\n", end="", flush=True)

    asked: dict[str, Any] = json.load(sys.stdin)
    notice = {field: asked[field] for field in ("title", "body") if field in asked}
    # Each by itself, so that one that fails or hangs keeps none of the others from its notice.
    with ThreadPoolExecutor(len(asked["urls"])) as threads:
        for place, url in enumerate(asked["urls"]):
            threads.submit(send, place, url)


if __name__ == "__main__":
    main()
