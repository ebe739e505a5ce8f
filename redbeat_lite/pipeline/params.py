"""What a step gets and what it may return. Pure."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..errors import CorruptEntry, InvalidEntry
from ..storage.json_values import dumps, loads, pack, packed_items, packed_mapping, unpack
from .definition import check_params
from .errors import StepFailed

#: What a step of a task process may return around the params.
_WRAPPING = ("id", "name", "result", "params", "error_info")


def encode(params: Mapping[str, Any], where: str = "params") -> str:
    """Params as the JSON text that lies in Redis; raises InvalidEntry, with the place, if they cannot be stored."""
    return dumps(pack(params, where))


def decode(text: str | bytes) -> dict[str, Any]:
    """The inverse of :func:`encode`; raises CorruptEntry if it is no JSON object."""
    params = unpack(loads(text))
    if not isinstance(params, dict):
        raise CorruptEntry(f"params are not an object but {type(params).__name__}")
    return params


def merge(texts: Iterable[str | bytes | None]) -> str:
    """Params merged in this order, a later one over an earlier one, key by key; no value is looked into.

    Parameters:
        texts: as :func:`encode` gives them; ``None`` where one is lost.

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
    """The params that a step adds, as JSON text.

    Parameters:
        returned: what its body returned: ``None``, a dict, or ``(True, dict or None)``.
        process: whether the step is of a task process. Then a dict with ``result`` holds the params
            among other things, and a pair succeeds if its first item is true, whatever its type.

    Raises:
        StepFailed: it returned ``(False, …)``, or what is no JSON object.
    """
    if isinstance(returned, (tuple, list)) and len(returned) == 2 and (process or isinstance(returned[0], bool)):
        succeeded, params = bool(returned[0]), returned[1]
    elif process and isinstance(returned, dict) and "result" in returned:
        succeeded, params = bool(returned["result"]), _unwrapped(returned)
    else:
        succeeded, params = True, returned
    if not succeeded:
        raise StepFailed(_why(returned, params))
    try:
        return encode(check_params("the step's return value", params))
    except InvalidEntry as exc:
        raise StepFailed(str(exc)) from None


def _unwrapped(returned: dict[str, Any]) -> Any:
    # Its decorator spread the params among its own fields, its plain tasks put them into one.
    spread = {key: value for key, value in returned.items() if key not in _WRAPPING}
    params = returned.get("params") or {}
    return {**spread, **params} if isinstance(params, dict) else params


def _why(returned: Any, params: Any) -> str:
    said = returned.get("error_info") if isinstance(returned, dict) else params
    return f"the step said that it failed: {said!r:.500}" if said else "the step said that it failed"


def arguments(
    body: Callable[..., Any], header: Mapping[str, Any], params: dict[str, Any], args: Any
) -> tuple[Any, ...]:
    """The positional arguments of a step's body; the first of ``args`` stands for the params."""
    if header["process"] is None:
        return (params, *args[1:])
    data = {**header["process"], "task_id": header["run"], "params": params, "status": "running"}
    # Its plain tasks are called with the data and their name, its decorated ones see the data alone.
    return (data, header["name"]) if _positional(body) > 1 else (data,)


def _positional(body: Callable[..., Any]) -> int:
    parameters = inspect.signature(body).parameters.values()
    if any(each.kind is each.VAR_POSITIONAL for each in parameters):
        return 2
    return sum(each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) for each in parameters)
