"""The options of ``apply_async``, known so that a misspelt one can be told from one that is meant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from itertools import islice
from typing import Any

from .errors import InvalidEntry

#: What Celery's ``apply_async`` and ``send_task`` take, and what kombu's ``publish`` takes from them.
KNOWN = frozenset(
    """
    task_id producer publisher connection router route_name result_cls add_to_parent ignore_result shadow
    countdown eta expires retries link link_error chain chord group_id group_index root_id parent_id reply_to
    time_limit soft_time_limit task_type replaced_task_nesting stamped_headers argsrepr kwargsrepr origin
    queue exchange exchange_type routing_key event_dispatcher retry retry_policy serializer delivery_mode
    compression declare headers mandatory immediate priority content_type content_encoding expiration timeout
    confirm_timeout correlation_id message_id timestamp type user_id app_id cluster_id application_headers
    MessageGroupId MessageDeduplicationId MessageAttributes
    """.split()  # noqa: SIM905 - a list would be sixty lines
)

#: Unknown options that are looked at: a look takes 0.1 ms or more, and 64 KiB hold thousands of them.
_LOOKED_AT = 20

#: How alike two names are that mean the same: "queu" and "queue" are 0.89, "group" and "group_id" 0.77.
_ALIKE = 0.85


def check_destination(options: Mapping[str, Any], prefix: str) -> None:
    """Refuse a queue that is one of the schedule's own keys: a message would be put there if broker and schedule share
    a database.

    Parameters:
        prefix: of the schedule's keys.

    Raises:
        InvalidEntry: names the option.
    """
    for name in ("queue", "routing_key"):
        value = options.get(name)
        if isinstance(value, str) and value.startswith((f"{{{prefix}}}:", f"{{{prefix}:")):
            raise InvalidEntry(f"options.{name}", "a queue, which is no key of the schedule", value)


def misspelt(options: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Options that look like a known one without being it, each with the one it looks like.

    Not every unknown option: a task's own ``apply_async`` and some brokers take options of their own.
    """
    stamped = set(options.get("stamped_headers") or ())
    unknown = (name for name in options if name not in KNOWN and name not in stamped)
    for name in islice(unknown, _LOOKED_AT):
        near = get_close_matches(name, KNOWN, n=1, cutoff=_ALIKE)
        if near:
            yield name, near[0]
