"""What redis-py does again for each client and each connection, done once."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
import redis.utils


@pytest.fixture(scope="session", autouse=True)
def version_read_once() -> Iterator[None]:
    """Let redis-py remember its own version.

    It parses the metadata of its installation for every connection, to name itself to the server: a tenth and more of
    what a test costs that makes an app, a beat and a few clients.
    """
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(redis.utils, "get_lib_version", functools.cache(redis.utils.get_lib_version))
        yield
