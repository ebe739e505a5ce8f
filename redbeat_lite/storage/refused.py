"""The stored form of what the leader has refused of its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice

from ..errors import storable
from .json_values import dumps, loads_as

#: Entries that are stored with their error, and characters of a name and of an error: 50 KB at most, typically 1.
_MOST = 100
_NAME = 200
_ERROR = 300


@dataclass(frozen=True, slots=True)
class Refused:
    """What is refused of a configuration.

    Parameters:
        owner: whose configuration it is; empty if no beat has read one yet.
        count: how many entries.
        errors: what is wrong, by name: of the first hundred, and no longer than 300 characters each.
    """

    owner: str = ""
    count: int = 0
    errors: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, owner: str, errors: Mapping[str, str]) -> Refused:
        """The entries of ``owner``, with what is wrong, in a form that can be stored."""
        first = islice(errors.items(), _MOST)
        return cls(owner, len(errors), {_cut(name, _NAME): _cut(error, _ERROR) for name, error in first})

    def encode(self) -> str:
        """The stored form."""
        return dumps({"owner": self.owner, "count": self.count, "errors": dict(self.errors)})

    @classmethod
    def decode(cls, raw: bytes) -> Refused:
        """From the stored form, or what can be told of anything else that lies there."""
        found = loads_as(dict, raw)
        if not isinstance(found.get("errors"), dict):
            return cls()
        errors = {name: str(error) for name, error in found["errors"].items()}
        count = found.get("count")
        return cls(str(found.get("owner", "")), count if type(count) is int else len(errors), errors)


def _cut(text: str, most: int) -> str:
    text = storable(text)
    return text if len(text) <= most else f"{text[: most - 1]}…"
