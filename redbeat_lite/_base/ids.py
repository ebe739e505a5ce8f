"""Unique names: random ones, and UUIDs that follow from a name."""

from __future__ import annotations

import os
from hashlib import sha1

#: The upper two bits of a UUID's 17th digit are 10, its variant (RFC 9562).
_VARIANTS = dict(zip("0123456789abcdef", "89ab" * 4, strict=True))


def random_hex(size: int = 16) -> str:
    """Return so many random bytes in hexadecimal.

    16 bytes are as random as ``uuid.uuid4()`` and take a third of its time.
    """
    return os.urandom(size).hex()


def named_uuid(namespace: bytes, name: str) -> str:
    """Return ``uuid.uuid5(namespace, name)`` as text, in a third of its time: every message has
    such an id.
    """
    digits = sha1(namespace + name.encode(), usedforsecurity=False).hexdigest()
    variant = _VARIANTS[digits[16]]
    return f"{digits[:8]}-{digits[8:12]}-5{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:32]}"
