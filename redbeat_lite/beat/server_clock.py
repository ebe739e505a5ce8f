"""Clock of the Redis server, by which the leader plans."""

from __future__ import annotations

from .._base.clock import elapsed, wall_ms


class ServerClock:
    """Clock of the server, read with each request for the lease and with each renewal.

    Between two readings it goes on by the time that has passed on this machine. So beats on
    machines with different clocks agree, and a wrong clock of one machine has no effect.
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

    def read(self, server_ms: int, sent: float) -> None:
        """Set this clock by a time of the server, which a reply has just brought.

        The server has read its clock at some moment between the request and the reply. So a slow
        reply moves this clock only if the server's clock was set meanwhile.

        Parameters:
            server_ms: the server's time, in epoch ms.
            sent: when the request was sent, in seconds of :func:`elapsed`.
        """
        least = server_ms - 1000 * elapsed()  # if the server has read its clock just now
        most = server_ms - 1000 * sent  # if it has read its clock when the request was sent
        ahead = least if self._ahead is None else self._ahead
        # Keep the old value if it lies between ``least`` and ``most``. Otherwise take the nearer of
        # these two.
        self._ahead = min(max(ahead, least), most)
