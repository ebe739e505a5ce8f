"""Exclusion of forks while background threads of this package work.

If one thread holds a lock while another thread forks the process, the child has that lock for ever,
because no thread of the child can release it. Such a lock may be the import lock of a module, or a
lock of kombu. As soon as the child needs it, the child hangs. A prefork worker forks whenever it
replaces a child, and a task may fork, too. So our threads work inside :func:`no_forks`, and a fork
waits until none of them works.

This module itself uses no lock. Each step is one operation on a dict or a list, which the
interpreter does not interrupt. So a signal handler may fork, too, whatever it has interrupted.
"""

from __future__ import annotations

# Import this before the hook below is registered. Python runs the hooks before a fork in reverse
# order, so a fork waits here first, and acquires the lock of logging after that. In the other
# order, a thread that logs would wait for the fork, and the fork for that thread.
import logging  # noqa: F401
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident

from .clock import elapsed

#: Longest wait of a fork in seconds. A thread that works for longer probably waits for a server and
#: holds only the lock of its own connection. So the fork goes ahead then: the risk is small, and a
#: pool without children would be worse.
PATIENCE = 2.0

#: Seconds between two checks, by a thread that waits for a fork, or by a fork that waits.
_INTERVAL = 0.001

#: Id of a thread -> count of its :func:`no_forks` blocks in progress.
_working: dict[int, int] = {}

#: Ids of the threads that are about to fork. A thread is in it twice if a signal handler interrupts
#: its fork and forks, too.
_forking: list[int] = []


@contextmanager
def no_forks() -> Iterator[None]:
    """Keep other threads from forking the process during the block, for up to ``PATIENCE`` seconds.

    Any number of threads may be in such a block, and blocks may be nested. The thread of the block
    itself may fork. Do not sleep in the block without :func:`forks_allowed`.

    If gevent has turned threads into greenlets, the block has no effect: such a process forks no
    children, and a thread that waited for one of its own greenlets would wait for ever.
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
    """Allow forks during a block, such as a sleep, that is inside of :func:`no_forks`."""
    me = get_ident()
    # The number of no_forks() blocks around this one; 0: there is none.
    depth = _working.pop(me, 0)
    try:
        yield
    finally:
        if depth:
            _enter(me, depth)


def _enter(me: int, depth: int) -> None:
    """Note that this thread works in ``depth`` more blocks, once no other thread forks."""
    while True:
        _working[me] = _working.get(me, 0) + depth
        # A forking thread notes its fork first, and then checks who works. This thread notes its
        # work first, and then checks who forks. So at least one of the two sees the other.
        was_inside = _working[me] > depth
        others_fork = any(thread != me for thread in list(_forking))
        # If this thread was in a block already, the fork may be waiting for this thread, and both
        # would wait for each other.
        if was_inside or not others_fork:
            return
        del _working[me]
        time.sleep(_INTERVAL)


def _leave(me: int) -> None:
    """Note that this thread has left one block."""
    # A child that was forked in the block has no count.
    depth = _working.get(me, 0) - 1
    if depth > 0:
        _working[me] = depth
    else:
        _working.pop(me, None)


def _before_fork() -> None:
    """Wait until no other thread is in :func:`no_forks`, for up to ``PATIENCE`` seconds."""
    me = get_ident()
    deadline = elapsed() + PATIENCE
    # While a thread is in this list, no other thread begins to work.
    _forking.append(me)
    while any(thread != me for thread in list(_working)) and elapsed() < deadline:
        # Let other threads begin work while this fork waits. Otherwise one hanging server would
        # stop the renewal of locks. No thread of ours works all the time, so the fork has its turn.
        _forking.remove(me)
        try:
            time.sleep(_INTERVAL)
        finally:
            # Note the fork again in any case, because Python forks even if a signal handler raises.
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
