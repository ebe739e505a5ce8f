"""The mark ``server``: set on every test that starts a server or other processes, so that the others can be chosen."""

from __future__ import annotations

import pytest

#: Folders of tests that start processes whatever fixtures they ask for.
_PROCESSES = ("tests/acceptance/", "tests/faults/", "tests/topologies/")


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        fixtures: list[str] = getattr(item, "fixturenames", [])
        if item.nodeid.startswith(_PROCESSES) or any("server" in name or name == "live_url" for name in fixtures):
            item.add_marker("server")
