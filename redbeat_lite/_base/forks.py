"""A gate between the background threads of the package and the forks of their process.

A lock that one thread holds while another one forks, such as that of a module during its import or
one of kombu's, stays held in the child for ever, because the child has no thread that could release
it. The first who wants it hangs. A prefork worker forks whenever it replaces a child, and a task
may fork too. So our threads do each piece of work inside this gate, and a fork waits until no work
is in progress.

The gate itself holds no lock: each step is one operation on a dict or a list, which the interpreter
does not divide. So a signal handler may fork too, whatever it has interrupted.
"""

from __future__ import annotations

# Imported before this module registers its hook. Hooks run before a fork in reverse order, so the
# fork waits here before it takes the lock of the logging. In the other order a thread that logs
# would wait for the fork, and the fork for it.
import logging  # noqa: F401
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident

from .clock import elapsed

#: Longest wait of a fork in seconds. Work that lasts longer waits for a server, for an unknown
#: time. A thread that waits for a server holds no lock but that of its own connection, and a pool
#: without children is worse than that risk.
PATIENCE = 2.0

#: Seconds between two checks of either side.
_INTERVAL = 0.001

#: Thread -> number of its blocks that are in progress.
_working: dict[int, int] = {}

#: Threads that are about to fork. A thread is in it twice if a signal handler interrupts its fork
#: and forks as well.
_forking: list[int] = []


@contextmanager
def no_forks() -> Iterator[None]:
    """Let no other thread fork the process during the block, except one that has waited for
    :data:`PATIENCE` seconds.

    Any number of threads may be in such a block, and a thread in several. A thread inside may fork,
    because it does not wait for itself. Do not wait or sleep in the block, see
    :func:`forks_allowed`.

    Does nothing where gevent has turned threads into greenlets: nobody forks children there, and a
    thread that waited for one of its own greenlets would wait for ever.
    """
    monkey = sys.modules.get("gevent.monkey")
    if monkey is not None and monkey.is_module_patched("threading"):
        yield
        return
    me = get_ident()
    _enter(me, 1)
    try:
        yield
    finally:
        _leave(me)


@contextmanager
def forks_allowed() -> Iterator[None]:
    """Let other threads fork during the block, such as a sleep, although this thread is inside
    :func:`no_forks`.
    """
    me = get_ident()
    depth = _working.pop(me, 0)
    try:
        yield
    finally:
        if depth:
            _enter(me, depth)


def _enter(me: int, depth: int) -> None:
    while True:
        _working[me] = _working.get(me, 0) + depth
        # A forking thread first announces itself and then looks for workers. Here the order is the
        # reverse, so at least one of the two sees the other.
        was_inside = _working[me] > depth
        others_fork = any(thread != me for thread in list(_forking))
        # A thread that was inside already does not wait here, because the fork may be waiting for
        # it.
        if was_inside or not others_fork:
            return
        del _working[me]
        time.sleep(_INTERVAL)


def _leave(me: int) -> None:
    depth = _working.get(me, 0) - 1  # A child that was forked during the work has no number.
    if depth > 0:
        _working[me] = depth
    else:
        _working.pop(me, None)


def _before_fork() -> None:
    me = get_ident()
    deadline = elapsed() + PATIENCE
    _forking.append(me)
    while any(thread != me for thread in list(_working)) and elapsed() < deadline:
        # Let others begin work while this thread waits, or one server that hangs would stop the
        # renewal of locks. No thread of ours works all the time, so a moment without work comes.
        _forking.remove(me)
        try:
            time.sleep(_INTERVAL)
        finally:
            # Python forks even if a signal handler raises here.
            _forking.append(me)


def _after_fork_in_parent() -> None:
    _forking.remove(get_ident())


def _after_fork_in_child() -> None:
    # The child has no thread except the one that forked.
    _forking.clear()
    _working.clear()


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
)
