"""Definition of a pipeline, and the params that its steps get and return.

This module uses neither Redis nor a Celery app.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import groupby
from typing import Annotated, Any, Literal, NamedTuple
from uuid import NAMESPACE_OID, uuid5

from msgspec import Struct, convert

from .._base.errors import CorruptEntry, InvalidEntry, RedbeatError, UnsupportedFormat
from .._base.fields import Kind, Model, checked_kind, length, whole
from .._base.ids import named_uuid
from .._base.json_values import dumps, loads, loads_as, pack, packed_items, packed_mapping, unpack
from ..policies import MIN_LEASE

#: Version of the stored definition.
FORMAT = 2

#: Maximum number of steps of a pipeline, because one script may have to read all of them.
MAX_STEPS = 1000

#: Seconds that the record of a run lives after its end by default: a week.
TTL = 7 * 86_400.0

#: Maximum number of seconds of a ttl: a century. A server refuses expiries in the far future.
MAX_TTL = 36_525 * 86_400.0

#: Policy for an entry that starts a run while its previous run has not ended: start the new run all
#: the same, leave it out, or let it wait.
Overlap = Literal["allow", "skip", "wait"]

#: A step of a task process (see ``start_task_process``) may return its params as fields of a dict.
#: The following fields of that dict are no params.
_WRAPPING = ("id", "name", "result", "params", "error_info")

_NAMESPACE = uuid5(NAMESPACE_OID, "redbeat_lite.pipeline").bytes


class Step(Struct, frozen=True, omit_defaults=True):
    """One task of a pipeline.

    The last four fields hold packed values (:func:`redbeat_lite._base.json_values.pack`).

    Parameters:
        name: name for people and for :meth:`RunStatus.step`.
        task: registered name of its task.
        stage: number of its stage, from 0. A stage has the steps of one priority.
        args, kwargs: further arguments, after the params.
        options: options of its signature, for ``apply_async``.
        noted: options of the task, for a process that publishes the task but has not registered it.
    """

    name: str
    task: str
    stage: int = 0
    args: Any = []
    kwargs: dict[str, Any] = {}
    options: dict[str, Any] = {}
    noted: dict[str, Any] = {}


def _steps_of_format_1(stages: list[list[Any]]) -> list[Any]:
    """Return the stored steps of format 1, which an old export may have.

    In format 1, each stage was a list of its steps, and a step did not have the number of its
    stage.
    """
    return [{**step, "stage": stage} for stage, steps in enumerate(stages) for step in steps]


_LIFE = length(MIN_LEASE, MAX_TTL)
_STEPS = Kind("", "steps", partial(convert, type=tuple[Step, ...]))
_PARAMS = checked_kind("JSON", "a JSON object (a dict)", lambda value: isinstance(value, dict))
_PROCESS = Kind("", "data", dict)


class Definition(Model, frozen=True):
    """A valid pipeline.

    Parameters:
        steps: the steps of all stages, in order. Steps of a stage are in the order in which the
            user wrote them. The index of a step here is its number.
        params: params of the first stage, packed.
        revoke_siblings: whether a failure revokes the running steps of its stage.
        ttl: seconds that the record lives after the end.
        process: data of a task process (a job that was written as one dict) without its params,
            packed; ``None`` for any other pipeline. A step gets this data with the params in it,
            and not the params alone.
        overlap: what happens to a run while another run of the same entry has not ended.
        deadline: seconds after which a run that has not ended fails.
        at_once: maximum number of steps of a run that are queued or running; ``None``: no limit.
    """

    steps: Annotated[tuple[Step, ...], _STEPS]
    params: Annotated[Mapping[str, Any], _PARAMS]
    revoke_siblings: bool = False
    ttl: Annotated[float, _LIFE] = TTL
    process: Annotated[Mapping[str, Any] | None, _PROCESS] = None
    overlap: Overlap = "allow"
    deadline: Annotated[float | None, _LIFE] = None
    at_once: Annotated[int | None, whole(1)] = None

    def names(self) -> list[list[str]]:
        """Return the names of the steps, one list per stage."""
        stages = groupby(self.steps, key=lambda step: step.stage)
        return [[step.name for step in group] for _, group in stages]

    def data_of(self, stage: int) -> dict[str, Any] | None:
        """Return the data that a stage's steps get; ``None`` if this is no task process.

        The field ``queue`` has the names of the steps from this stage on.
        """
        if self.process is None:
            return None
        return {**unpack(self.process), "queue": self.names()[stage:]}

    def encode(self) -> str:
        """Return the definition as JSON."""
        return dumps({"v": FORMAT, **super().encode()})

    @classmethod
    def decode(cls, text: str | bytes) -> Definition:
        """Return the definition that :meth:`encode` wrote.

        Raises:
            CorruptEntry: the text is no definition.
            UnsupportedFormat: a newer version of this package wrote it.
        """
        stored = loads_as(dict, text)
        version = stored.get("v")
        if isinstance(version, int) and version > FORMAT:
            raise UnsupportedFormat(
                f"definition of a pipeline has format {version}; this reads up to {FORMAT}"
            )
        try:
            if version == 1:
                stored["steps"] = _steps_of_format_1(stored.get("stages", []))
            return super().decode(stored)  # type: ignore[no-any-return]
        except (TypeError, ValueError) as exc:
            raise CorruptEntry(f"definition of a pipeline is not usable: {exc!r}") from exc


#: Decoder with a cache, because the definition of one run is decoded again and again.
decode_cached = lru_cache(maxsize=16)(Definition.decode)


class Ref(NamedTuple):
    """One copy of one step's message.

    Parameters:
        run: id of the run.
        step: number of the step, from 0.
        round: how often the step was started again.
        attempt: number of Celery's retry, from 0.
        token: token of the delivery; empty before a worker has got the message.
        tries: number of messages published for this attempt so far. Only a script that lists the
            steps to publish knows it; otherwise it is 0.
    """

    run: str
    step: int
    round: int = 0
    attempt: int = 0
    token: str = ""
    tries: int = 0

    @property
    def task_id(self) -> str:
        """Id of the step's task. All processes that publish the step compute the same id.

        The ids of all rounds of a step differ only in the last group, which is the round. So the
        scripts of the once-locks let a later round take over the lock of an earlier one.
        """
        return named_uuid(_NAMESPACE, f"{self.run}\0{self.step}")[:24] + f"{self.round:012}"


# -- params of steps -------------------------------------------------------------------------------


class StepFailed(RedbeatError):
    """The step returned that it has failed, or returned a value that no step may return."""


def pack_params(params: Mapping[str, Any] | None, where: str = "params") -> dict[str, Any]:
    """Return params as packed values; ``None`` stands for no params.

    Raises:
        InvalidEntry: the params are no JSON object, or cannot be stored. The error names them by
            ``where``.
    """
    packed: dict[str, Any] = pack(_PARAMS.read(where, {} if params is None else params), where)
    return packed


def decode_params(text: str | bytes) -> dict[str, Any]:
    """Return the params of a JSON text; raises CorruptEntry if it is no JSON object."""
    return {name: unpack(value) for name, value in packed_items(loads(text)).items()}


def merge_params(texts: Iterable[str | bytes | None]) -> str:
    """Merge params key by key. A later text replaces the whole value of an equal key.

    Parameters:
        texts: JSON of packed params; ``None`` for a text that is lost.

    Raises:
        CorruptEntry: a text is lost, or is no JSON object.
    """
    merged: dict[str, Any] = {}
    for text in texts:
        if text is None:
            raise CorruptEntry("some of its params are lost")
        # Values keep their tags for types here, so that merging changes no value.
        merged.update(packed_items(loads(text)))
    return dumps(packed_mapping(merged))


def result_of(returned: Any, *, process: bool = False) -> str:
    """Return the params that a step adds, as JSON text.

    Parameters:
        returned: return value of the body: ``None``, a dict, or ``(True, dict or None)``.
        process: whether the step belongs to a task process. Then the body may also return a dict
            whose field ``result`` says whether the step succeeded, and whose other fields hold the
            params. Also, the first item of a pair may then be any value, true or false.

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
        return dumps(pack_params(params, "the step's return value"))
    except InvalidEntry as exc:
        raise StepFailed(str(exc)) from None


def _unwrapped(returned: dict[str, Any]) -> Any:
    """Return the params of a dict that a task process's step returned.

    Params may be fields of the dict itself, or items of its field ``params``, which prevail.
    """
    params = returned.get("params") or {}
    if not isinstance(params, dict):
        return params  # result_of() raises for a value that is no dict.
    own_fields = {key: value for key, value in returned.items() if key not in _WRAPPING}
    return {**own_fields, **params}


def arguments_of(
    body: Callable[..., Any], header: Mapping[str, Any], params: dict[str, Any], args: Sequence[Any]
) -> tuple[Any, ...]:
    """Return the positional arguments of a step's body.

    Parameters:
        header: header of the step's message.
        args: arguments of the message. The params replace the first of them, the run's id.
    """
    # Only a step of a task process has data in its header.
    if header["process"] is None:
        # Any other step gets the params, and then the arguments of its signature.
        return (params, *args[1:])
    # A step of a task process gets the data, with the params in it.
    data = {**header["process"], "task_id": header["run"], "params": params, "status": "running"}
    return (data, header["name"]) if takes_name(body) else (data,)


def takes_name(body: Callable[..., Any]) -> bool:
    """Return whether the body of a task process's step takes the name of the step, too.

    Such a body may take the data alone, or the data and the name.
    """
    try:
        # This raises TypeError if the body does not take two positional arguments.
        inspect.signature(body).bind("data", "name")
    except TypeError:
        return False
    return True
