"""Options of ``apply_async`` in an entry: misspelt names, and values that fail at every run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from difflib import get_close_matches
from itertools import islice
from typing import Any

from kombu.entity import Queue

from .._base.errors import InvalidEntry
from .._base.times import YEAR
from ..settings import key_root

#: Maximum number of seconds until a message expires or becomes due. The limit makes sure that a
#: datetime can hold that instant.
LONGEST = 100 * YEAR

#: Options that Celery's ``apply_async`` and ``send_task`` know, and those that they hand on to
#: kombu's ``publish``.
KNOWN_OPTIONS = frozenset(
    """
    task_id producer publisher connection router
    route_name result_cls add_to_parent ignore_result shadow
    countdown eta expires retries link link_error
    chain chord group_id group_index root_id parent_id reply_to
    time_limit soft_time_limit task_type replaced_task_nesting stamped_headers argsrepr
    kwargsrepr origin
    queue exchange exchange_type routing_key
    event_dispatcher retry retry_policy serializer delivery_mode
    compression declare headers mandatory immediate
    priority content_type content_encoding expiration timeout
    confirm_timeout correlation_id message_id timestamp
    type user_id app_id cluster_id application_headers
    MessageGroupId MessageDeduplicationId MessageAttributes
    """.split()  # noqa: SIM905 - a list would be sixty lines
)

#: Name of a known option in lower case -> the option.
_BY_NAME = {name.lower(): name for name in KNOWN_OPTIONS}

#: Frequent short forms of known options. They must match exactly: a name that only resembles one,
#: as "ahead" resembles "head", may be an option of a broker.
_SHORT_FORMS = {"que": "queue", "prio": "priority", "expiry": "expires", "head": "headers"}

#: Maximum number of unknown options that are compared with the known ones. A comparison takes 0.1
#: ms or more, and 64 KiB can hold thousands of options.
_MAX_COMPARED = 20

#: Similarity (0 to 1) from which on an unknown name is taken for a misspelled known one. "queu" and
#: "queue" have 0.89; "group" and "group_id", which are different options, have 0.77.
_MIN_SIMILARITY = 0.84


def _is_seconds(value: Any) -> bool:
    """Return whether a value is a number of seconds, of up to 100 years."""
    # True and False are no numbers here.
    return type(value) in (int, float) and abs(value) <= LONGEST


def _is_instant(value: object) -> bool:
    """Return whether a value is a datetime, or its text in ISO 8601."""
    if not isinstance(value, str):
        return isinstance(value, datetime)
    try:
        datetime.fromisoformat(value)
    except ValueError:
        return False
    return True


#: Option whose wrong values would fail at every run -> test of a value, and the right values in
#: words.
_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "expires": (
        lambda value: _is_seconds(value) or _is_instant(value),
        "seconds up to 100 years, or a datetime or its ISO form",
    ),
    "countdown": (_is_seconds, "seconds up to 100 years"),
    "eta": (_is_instant, "a datetime or its ISO form"),
    "queue": (
        lambda value: isinstance(value, (str, Queue)),
        "the name of a queue or a kombu Queue",
    ),
}


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse options that look misspelt, and values that would fail at every run.

    Other unknown options are allowed, because a task's own ``apply_async`` and some brokers have
    options of their own.

    Raises:
        InvalidEntry: names the option.
    """
    # Celery takes each name in ``stamped_headers`` as the name of a further option.
    stamped = set(options.get("stamped_headers") or ())
    unknown = (name for name in options if name not in KNOWN_OPTIONS and name not in stamped)
    for name in islice(unknown, _MAX_COMPARED):
        near = _known_option(name)
        if near:
            hint = f"did you mean {near!r}?"
            raise InvalidEntry(f"options.{name}", "a known option", options[name], hint=hint)
    for name, (is_right, expected) in _CHECKS.items():
        if options.get(name) is not None and not is_right(options[name]):
            raise InvalidEntry(f"options.{name}", expected, options[name])


def _known_option(unknown: str) -> str | None:
    """Return the known option that an unknown name resembles; ``None`` if it resembles none."""
    name = unknown.lower()
    if name in _SHORT_FORMS:
        return _SHORT_FORMS[name]
    near = get_close_matches(name, _BY_NAME, n=1, cutoff=_MIN_SIMILARITY)
    return _BY_NAME[near[0]] if near else None


def check_destination(options: Mapping[str, Any], prefix: str) -> None:
    """Refuse a queue whose name is one of the schedule's own keys.

    If the broker and the schedule share a database, the broker would write messages into that key.

    Raises:
        InvalidEntry: the option names such a queue.
    """
    root = key_root(prefix)
    for name in ("queue", "routing_key"):
        value = options.get(name)
        # The root is "{prefix}", with braces, because it is a hash tag of Redis. Keys of the
        # schedule begin with "{prefix}:". Keys of a pipeline's run begin with "{prefix:<run id>}",
        # so for them compare the root without its closing brace, which is root[:-1].
        if isinstance(value, str) and value.startswith((f"{root}:", f"{root[:-1]}:")):
            raise InvalidEntry(f"options.{name}", "a queue, which is no key of the schedule", value)
