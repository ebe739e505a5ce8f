"""Definition of a pipeline: steps by stage, params and options.

Pure: it knows no Redis, and no app.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal
from uuid import NAMESPACE_OID, uuid5

from msgspec import Struct
from msgspec.structs import asdict, replace

from .._base.errors import CorruptEntry, UnsupportedFormat
from .._base.fields import Kind, Model, fields_of, length, require, whole
from .._base.ids import named_uuid
from ..policies import MIN_LEASE
from ..store.json_values import dumps, loads, pack, unpack

#: Version of the stored definition.
FORMAT = 1

#: Maximum number of steps of a pipeline, because one script may have to read all of them.
MAX_STEPS = 1000

#: Seconds that the record of a run lives after its end by default: a week.
TTL = 7 * 86_400.0

#: Maximum number of seconds of a ttl: a century. A server refuses expiries in the far future.
MAX_TTL = 36_525 * 86_400.0

#: Policy for an entry that starts a run while its previous run has not ended: start the new run all
#: the same, leave it out, or let it wait.
Overlap = Literal["allow", "skip", "wait"]

_NAMESPACE = uuid5(NAMESPACE_OID, "redbeat_lite.pipeline").bytes


class Step(Struct, frozen=True):
    """One task of a pipeline.

    Parameters:
        name: name for people and for :meth:`RunStatus.step`.
        task: registered name of its task.
        priority: steps of a higher priority run first.
        args, kwargs: further arguments, after the params.
        options: options of its signature, for ``apply_async``.
        noted: values of the task, for a process that publishes it but has not registered it.
    """

    name: str
    task: str
    priority: float
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = {}
    options: Mapping[str, Any] = {}
    noted: Mapping[str, Any] = {}


def _params(value: Any) -> Any:
    return require(isinstance(value, dict), value)


def _encode_step(step: Step) -> list[Any]:
    """Return the stored form of a step."""
    fields = {**asdict(step), "args": [*step.args]}
    return [pack(value, f"step {step.name!r}: {field}") for field, value in fields.items()]


def _decode_step(stored: list[Any]) -> Step:
    step = Step(*map(unpack, stored))
    return replace(step, args=tuple(step.args))


def _store_stages(stages: tuple[tuple[Step, ...], ...], field: str) -> list[list[Any]]:
    return [list(map(_encode_step, stage)) for stage in stages]


def _load_stages(stored: list[list[Any]]) -> tuple[tuple[Step, ...], ...]:
    return tuple(tuple(map(_decode_step, stage)) for stage in stored)


_LIFE = length(MIN_LEASE, MAX_TTL)
_STAGES = Kind("", "stages of steps", tuple, _store_stages, _load_stages)
_PARAMS = Kind("JSON", "a JSON object (a dict)", _params, pack, unpack)
_PROCESS = Kind("", "data", dict, lambda data, field: pack(data, "data"), unpack)


class Definition(Model, frozen=True):
    """A valid pipeline.

    Parameters:
        stages: the steps by stage, the highest priority first. Steps of a stage are in the order in
            which the user wrote them.
        params: params of the first stage.
        revoke_siblings: whether a failure revokes the running steps of its stage.
        ttl: seconds that the record lives after the end.
        process: data of a task process without its params. Its steps get this data instead of the
            params.
        overlap: what happens to a run while another run of the same entry has not ended.
        deadline: seconds after which a run that has not ended fails.
        at_once: maximum number of steps of a run that are queued or running; ``None``: no limit.
    """

    stages: Annotated[tuple[tuple[Step, ...], ...], _STAGES]
    params: Annotated[Mapping[str, Any], _PARAMS]
    revoke_siblings: bool = False
    ttl: Annotated[float, _LIFE] = TTL
    process: Annotated[Mapping[str, Any] | None, _PROCESS] = None
    overlap: Overlap = "allow"
    deadline: Annotated[float | None, _LIFE] = None
    at_once: Annotated[int | None, whole(1)] = None

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps of all stages, in order. The place of a step is its number, from 0."""
        return tuple(step for stage in self.stages for step in stage)

    @property
    def sizes(self) -> str:
        """Sizes of the stages, separated by commas, as the scripts read them."""
        return ",".join(str(len(stage)) for stage in self.stages)

    def stage_of(self, number: int) -> int:
        """Return the stage of a step by its number, which counts all steps of the pipeline."""
        for index, stage in enumerate(self.stages):
            if number < len(stage):
                return index
            number -= len(stage)
        raise IndexError(number)

    def names(self, stage: int = 0) -> list[list[str]]:
        """Return the names of the steps, one list per stage, from ``stage`` on."""
        return [[step.name for step in steps] for steps in self.stages[stage:]]

    def data_of(self, stage: int) -> dict[str, Any] | None:
        """Return the data that the steps of a stage get; ``None`` if this is no task process."""
        if self.process is None:
            return None
        return {**self.process, "queue": self.names(stage)}

    def numbers(self, stage: int) -> range:
        """Return the numbers of the steps of a stage."""
        first = sum(len(steps) for steps in self.stages[:stage])
        return range(first, first + len(self.stages[stage]))

    def encode(self) -> str:
        """Return the definition as JSON.

        Raises:
            InvalidEntry: an argument or an option cannot be stored.
        """
        return dumps({"v": FORMAT, **super().encode()})

    @classmethod
    def decode(cls, text: str | bytes) -> Definition:
        """Return the definition that :meth:`encode` wrote.

        Raises:
            CorruptEntry: the text is no definition.
            UnsupportedFormat: a newer version of this package wrote it.
        """
        stored = loads(text)
        if not isinstance(stored, dict):
            raise CorruptEntry("definition of a pipeline is not an object")
        version = stored.get("v")
        if isinstance(version, int) and version > FORMAT:
            raise UnsupportedFormat(
                f"definition of a pipeline has format {version}; this reads up to {FORMAT}"
            )
        try:
            fields = {}
            for name, field in fields_of(cls).items():
                if name in stored:  # Otherwise the field has its default.
                    fields[name] = field.load(stored[name])
            return cls(**fields)
        except (TypeError, ValueError) as exc:
            raise CorruptEntry(f"definition of a pipeline is not usable: {exc!r}") from exc


#: Decoder with a cache, because one run is decoded again and again.
decode_cached = lru_cache(maxsize=16)(Definition.decode)


def check_params(name: str, params: Any) -> dict[str, Any]:
    """Return params as a dict, which is empty for ``None``.

    Raises:
        InvalidEntry: the params are no JSON object. The error calls them ``name``.
    """
    checked: dict[str, Any] = _PARAMS.read(name, {} if params is None else params)
    pack(checked, name)  # This raises InvalidEntry if a value cannot be stored.
    return checked


def task_id(run_id: str, stage: int, number: int, round_: int) -> str:
    """Return the task id of a step: the same for every publisher and every copy."""
    return named_uuid(_NAMESPACE, f"{run_id}\0{stage}\0{number}\0{round_}")
