"""Params of a step: the arguments of its body, and the values that it may return. Pure."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .._base.errors import CorruptEntry, InvalidEntry, RedbeatError
from ..store.json_values import dumps, loads, pack, packed_items, packed_mapping, unpack
from .definition import check_params

#: If a step of a task process returns a dict, these fields of it are no params.
_WRAPPING = ("id", "name", "result", "params", "error_info")


class StepFailed(RedbeatError):
    """The step returned that it has failed, or returned a value that no step may return."""


def encode(params: Mapping[str, Any], where: str = "params") -> str:
    """Return params as JSON text.

    Raises:
        InvalidEntry: the params cannot be stored; the error names them by ``where``.
    """
    return dumps(pack(params, where))


def decode(text: str | bytes) -> dict[str, Any]:
    """Return the params of a JSON text; raises CorruptEntry if it is no JSON object."""
    params = unpack(loads(text))
    if not isinstance(params, dict):
        raise CorruptEntry(f"params are not an object but {type(params).__name__}")
    return params


def merge(texts: Iterable[str | bytes | None]) -> str:
    """Merge params key by key. A later text replaces the whole value of an equal key.

    Parameters:
        texts: texts of :func:`encode`; ``None`` for a lost one.

    Raises:
        CorruptEntry: a text is lost, or is no JSON object.
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
        returned: return value of the body: ``None``, a dict, or ``(True, dict or None)``.
        process: whether the step belongs to a task process. Then a dict with ``result`` holds the
            params among other fields, and the first item of a pair may be any true value.

    Raises:
        StepFailed: the body returned ``(False, …)``, or no JSON object.
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
        because = f": {reason!r:.500}" if reason else ""
        raise StepFailed(f"the step said that it failed{because}")
    try:
        return encode(check_params("the step's return value", params))
    except InvalidEntry as exc:
        raise StepFailed(str(exc)) from None


def _unwrapped(returned: dict[str, Any]) -> Any:
    """Return the params of a dict that a task process's step returned.

    Params may be fields of the dict itself, or items of its field ``params``.
    """
    params = returned.get("params") or {}
    if not isinstance(params, dict):
        return params  # The caller refuses this value.
    own_fields = {key: value for key, value in returned.items() if key not in _WRAPPING}
    return {**own_fields, **params}


def arguments(
    body: Callable[..., Any], header: Mapping[str, Any], params: dict[str, Any], args: Any
) -> tuple[Any, ...]:
    """Return the positional arguments of a step's body.

    Parameters:
        header: header of the step's message.
        args: arguments of the message. The params replace the first of them, the run's id.
    """
    # The steps of a task process get its data, with the params in it. Others get the params alone.
    if header["process"] is None:
        return (params, *args[1:])
    data = {**header["process"], "task_id": header["run"], "params": params, "status": "running"}
    # A plain body takes the data and the name of the step. A decorated one takes the data alone.
    if count_positional(body) > 1:
        return (data, header["name"])
    return (data,)


def count_positional(body: Callable[..., Any]) -> int:
    """Return how many positional parameters a body has; 2 if it takes any number.

    No caller needs to tell larger numbers than 2 apart.
    """
    count = 0
    for parameter in inspect.signature(body).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            return 2
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            count += 1
    return count
