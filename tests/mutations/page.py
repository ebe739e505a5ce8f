"""Faults of the page: who may see it, and who may do something there."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

_ACCESS = "web/users.py"
_PROMISE = "test_work.py::TestPeople::test_the_page_is_for_this_machine_alone_unless_told_otherwise"
_ROOM = ("tests/web/test_safety.py", "tests/web/test_hosts.py")

PAGE = (
    Mutation(
        name="the page lets everybody do everything who is let in",
        file=_ACCESS,
        old='rights: Collection[str] = ("view",)',
        new="rights: Collection[str] = RIGHTS",
        promise=_PROMISE,
        room=_ROOM,
    ),
    Mutation(
        name="the page is there for everybody",
        file=_ACCESS,
        old="if is_loopback(request.client) and is_own_name and not is_forwarded:",
        new="if True:",
        promise=_PROMISE,
        room=_ROOM,
    ),
)
