"""The child process that sends notices: the only one that imports apprise, so that what hangs there delays no beat.

Each line of its standard input is JSON: ``urls``, and ``title`` and ``body`` of a notice. Without a notice the URLs are
only looked at: the places of those that are wrong are printed.
"""

from __future__ import annotations

import json
import sys


def main() -> int:
    """Send what is asked for; 0 if every service has taken it."""
    import apprise

    failed = 0
    for line in sys.stdin:
        asked = json.loads(line)
        services = [apprise.Apprise.instantiate(url) for url in asked["urls"]]
        if "body" not in asked:
            print(json.dumps([place for place, service in enumerate(services) if service is None]))
            continue
        sender = apprise.Apprise()
        for service in filter(None, services):
            sender.add(service)
        failed += not sender.notify(title=asked["title"], body=asked["body"])
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
