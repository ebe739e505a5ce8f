"""Clock of the Redis server, by which the leader plans."""

from __future__ import annotations

from .._base.clock import elapsed, wall_ms


class ServerClock:
    """Clock of the server, read with each request for the lease and with each renewal.

    Between two readings, the time that has passed on this machine is added to the last one. So
    beats agree on the time even if the clocks of their machines differ or are wrong.
    """

    def __init__(self) -> None:
        #: Milliseconds by which the server's clock is ahead of :func:`elapsed`; ``None`` before the
        #: first reading.
        self._ahead: float | None = None

    def now_ms(self) -> int:
        """Return the server's time in epoch ms; before the first reading, that of this machine."""
        if self._ahead is None:
            return wall_ms()
        return int(self._ahead + 1000 * elapsed())

    def adjust(self, server_ms: int, sent: float) -> None:
        """Adjust this clock to a time of the server, which a reply has just brought.

        The server has read its clock at some moment between the request and the reply. So the reply
        gives a range for the time, which is wide if the reply is slow. This clock changes only if
        it is outside of the range.

        Parameters:
            server_ms: the server's time, in epoch ms.
            sent: when the request was sent, in seconds of :func:`elapsed`.
        """
        # Value of ``_ahead`` if the server has read its clock just now.
        lowest = server_ms - 1000 * elapsed()
        # Value of ``_ahead`` if the server has read its clock when the request was sent.
        highest = server_ms - 1000 * sent
        ahead = lowest if self._ahead is None else self._ahead
        # Keep the old value if it is between ``lowest`` and ``highest``. Otherwise take the nearer
        # one of these two.
        self._ahead = min(max(ahead, lowest), highest)
