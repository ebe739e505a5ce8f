"""The data of seed 002, as its tasks expect it. Pure."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any


def arguments(
    body: Callable[..., Any], header: Mapping[str, Any], params: dict[str, Any], args: Any
) -> tuple[Any, ...]:
    """The positional arguments of a step's body.

    Parameters:
        body: what runs, bound to its task if it is bound.
        header: of the message.
        params: what the stage begins with.
        args: of the message; the first one stands for the params.
    """
    if header["seed"] is None:
        return (params, *args[1:])
    data = {**header["seed"], "task_id": header["run"], "params": params, "status": "running"}
    # Its plain tasks are called with the data and their name, its decorated ones see the data alone.
    return (data, header["name"]) if _positional(body) > 1 else (data,)


def _positional(body: Callable[..., Any]) -> int:
    parameters = inspect.signature(body).parameters.values()
    if any(each.kind is each.VAR_POSITIONAL for each in parameters):
        return 2
    return sum(each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) for each in parameters)
