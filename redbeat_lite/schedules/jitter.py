"""Jitter: spreading what is due at the same moment, the same way on every machine."""

from __future__ import annotations

from hashlib import blake2b


def offset_ms(name: str, nominal_ms: int, jitter_ms: int, gap_ms: int | None = None) -> int:
    """How long after its nominal time an occurrence is due, in milliseconds.

    Drawn evenly from 0 to ``jitter_ms``, both included, out of the entry's name and the nominal time: a beat that takes
    over, a preview and a restart all find the same offset. The plan itself is not shifted.

    Parameters:
        gap_ms: from this occurrence to the next; the offset stays below it, so no occurrence is due as late as the
            nominal time of the next, whatever that one's own offset.
    """
    highest = jitter_ms if gap_ms is None else min(jitter_ms, gap_ms - 1)
    if highest <= 0:
        return 0
    return drawn(f"{nominal_ms}:{name}", highest + 1)


def drawn(text: str, bound: int) -> int:
    """A number from 0 to below ``bound``, which is even over texts."""
    # Unlike hash(), the same in every process; 64 bits, so the remainder is even to within bound / 2**64.
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % bound
