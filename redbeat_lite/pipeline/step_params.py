"""Params of a step: what it gets, and what it may return. Pure."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .._base.errors import CorruptEntry, InvalidEntry, RedbeatError
from ..store.json_values import dumps, loads, pack, packed_items, packed_mapping, unpack
from .definition import check_params

#: Fields that a step of a task process may return around the params.
_WRAPPING = ("id", "name", "result", "params", "error_info")


class StepFailed(RedbeatError):
    """The step said that it failed, or returned what no step may return."""


def encode(params: Mapping[str, Any], where: str = "params") -> str:
    """Return params as JSON text; raises InvalidEntry, with the place, if they cannot be stored."""
    return dumps(pack(params, where))


def decode(text: str | bytes) -> dict[str, Any]:
    """Read the JSON text of params; raises CorruptEntry if it is no JSON object."""
    params = unpack(loads(text))
    if not isinstance(params, dict):
        raise CorruptEntry(f"params are not an object but {type(params).__name__}")
    return params


def merge(texts: Iterable[str | bytes | None]) -> str:
    """Merge params in this order, a later one over an earlier one, key by key.

    Values are not merged.

    Parameters:
        texts: as :func:`encode` returns them; ``None`` for lost ones.

    Raises:
        CorruptEntry: one is lost, or is no JSON object.
    """
    merged: dict[str, Any] = {}
    for text in texts:
        if text is None:
            raise CorruptEntry("some of them are lost")
        merged.update(packed_items(loads(text)))
    return dumps(packed_mapping(merged))


def outcome(returned: Any, *, process: bool = False) -> str:
    """Return the params that a step adds, as JSON text.

    Parameters:
        returned: result of the body: ``None``, a dict, or ``(True, dict or None)``.
        process: whether the step is of a task process. Then a dict with ``result`` holds the params
            among other fields, and the first item of a pair may be any true value.

    Raises:
        StepFailed: it returned ``(False, …)``, or no JSON object.
    """
    succeeded = True
    params = returned
    is_pair = isinstance(returned, (tuple, list)) and len(returned) == 2
    if is_pair and (process or isinstance(returned[0], bool)):
        succeeded = bool(returned[0])
        params = returned[1]
    elif process and isinstance(returned, dict) and "result" in returned:
        succeeded = bool(returned["result"])
        params = _unwrapped(returned)
    if not succeeded:
        reason = returned.get("error_info") if isinstance(returned, dict) else params
        said = f": {reason!r:.500}" if reason else ""
        raise StepFailed(f"the step said that it failed{said}")
    try:
        return encode(check_params("the step's return value", params))
    except InvalidEntry as exc:
        raise StepFailed(str(exc)) from None


def _unwrapped(returned: dict[str, Any]) -> Any:
    """Return the params in a task process's dict: among its fields, or in a field of their own."""
    params = returned.get("params") or {}
    if not isinstance(params, dict):
        return params
    spread = {key: value for key, value in returned.items() if key not in _WRAPPING}
    return {**spread, **params}


def arguments(
    body: Callable[..., Any], header: Mapping[str, Any], params: dict[str, Any], args: Any
) -> tuple[Any, ...]:
    """Return the positional arguments of a step's body.

    The params take the place of the first of ``args``.
    """
    if header["process"] is None:
        return (params, *args[1:])
    data = {**header["process"], "task_id": header["run"], "params": params, "status": "running"}
    # A plain task of a process takes the data and its name, a decorated one the data alone.
    return (data, header["name"]) if _positional(body) > 1 else (data,)


def _positional(body: Callable[..., Any]) -> int:
    """Return how many positional arguments a body takes, at most 2."""
    count = 0
    for parameter in inspect.signature(body).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            return 2
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            count += 1
    return count
