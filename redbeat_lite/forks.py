"""A gate between the threads of ours that work in the background and the forks of their process.

A lock that a thread holds when another one forks, be it that of a module which is being imported or one of kombu's, is
held in the child for ever: there is no thread in it that could release it, and the first who wants it hangs. A prefork
worker forks whenever a child has to be replaced, and a task may fork too. So our threads do each piece of work behind
this gate, and a fork waits until there is none under way.

The gate holds no lock itself: each step is one operation on a dict or a list, which the interpreter does not divide. So
a signal handler may fork, too, whatever it has interrupted.
"""

from __future__ import annotations

# Before this module's own hook is registered: hooks run before a fork in the reverse order, and a fork that waits here
# while it holds the lock of the logging would wait for a thread which wants to log.
import logging  # noqa: F401 - as above
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident

from .clock import elapsed

#: Seconds that a fork waits at most. Work that lasts longer waits for a server, which may last for as long as it likes:
#: a pool without its children is worse than the chance that a lock is held just then, for who waits for a server holds
#: none but those of its own connection.
PATIENCE = 2.0

#: Seconds between two looks, of either side.
_LOOK = 0.001

#: Thread -> how often it has entered the gate and not left it.
_at_work: dict[int, int] = {}

#: The threads that fork just now; one that is interrupted by a signal handler which forks as well is in it twice.
_forking: list[int] = []


@contextmanager
def held_off() -> Iterator[None]:
    """No other thread forks the process while the block lasts, but for one that has waited for :data:`PATIENCE`.

    Any number of threads may be in such a block at once, and a thread in several. Who is in one may fork: it need not
    wait for itself. No place for waiting and sleeping, see :func:`let_through`.

    Does nothing where gevent has made greenlets of the threads: nobody forks children there, and a thread that waited
    for a greenlet of its own would wait in vain.
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
def let_through() -> Iterator[None]:
    """Forks need not wait for this thread while the block lasts, whatever it is in the middle of: for a sleep."""
    me = get_ident()
    depth = _at_work.pop(me, 0)
    try:
        yield
    finally:
        if depth:
            _enter(me, depth)


def _enter(me: int, depth: int) -> None:
    while True:
        _at_work[me] = _at_work.get(me, 0) + depth
        # Whoever forks notes that first and then looks who is at work; here it is the other way round. So one of the
        # two sees the other. A thread that was in already, or forks itself, must not wait: the fork may wait for it.
        if _at_work[me] > depth or all(each == me for each in list(_forking)):
            return
        del _at_work[me]
        time.sleep(_LOOK)


def _leave(me: int) -> None:
    depth = _at_work.get(me, 0) - 1  # not there in a child that was forked in the middle of work
    if depth > 0:
        _at_work[me] = depth
    else:
        _at_work.pop(me, None)


def _before_fork() -> None:
    me = get_ident()
    deadline = elapsed() + PATIENCE
    _forking.append(me)
    while any(each != me for each in list(_at_work)) and elapsed() < deadline:
        # Others may begin while this one waits, or a server that hangs for one of them would hold up the renewal of
        # locks. None of ours is at work all the time, so the moment comes.
        _forking.remove(me)
        try:
            time.sleep(_LOOK)
        finally:
            # Python goes on with the fork even if a signal handler raises here.
            _forking.append(me)


def _after_fork_in_parent() -> None:
    _forking.remove(get_ident())


def _after_fork_in_child() -> None:
    # Of all threads only the one that has forked is here.
    _forking.clear()
    _at_work.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
