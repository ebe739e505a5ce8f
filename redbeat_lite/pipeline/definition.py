"""Definition of a pipeline: steps by stage, params and options.

Pure: it knows no Redis, and no app.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import groupby
from typing import Annotated, Any, Literal, get_args
from uuid import NAMESPACE_OID, uuid5

from celery.canvas import Signature
from msgspec import Struct
from msgspec.structs import replace

from .._base.errors import CorruptEntry, InvalidEntry, UnsupportedFormat
from .._base.fields import Kind, Model, choice, fields_of, flag, length, require, whole
from .._base.ids import named_uuid
from ..policies import MIN_LEASE
from ..store.json_values import dumps, loads, pack, unpack

#: Version of the stored definition.
FORMAT = 1

#: Most steps of a pipeline. One script may look at all of them.
MAX_STEPS = 1000

#: Seconds that the record of a run lives after its end by default: a week.
TTL = 7 * 86_400.0

#: Most seconds of a ttl: a century. A server refuses expiries in the far future.
MAX_TTL = 36_525 * 86_400.0

#: Policy for an entry that starts a run while its run before has not ended: start it all the same,
#: leave it out, or let it wait.
Overlap = Literal["allow", "skip", "wait"]
OVERLAPS = get_args(Overlap)

_NAMESPACE = uuid5(NAMESPACE_OID, "redbeat_lite.pipeline").bytes

#: Options of a signature that conflict with the pipeline's own.
_REFUSED = ("link", "link_error", "chord", "group_id", "task_id", "reply_to")


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


_LIFE = length(MIN_LEASE, MAX_TTL)
_STAGES = Kind("", "stages of steps", tuple)
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
        at_once: most steps of a run that are queued or running; ``None``: no limit.
    """

    stages: Annotated[tuple[tuple[Step, ...], ...], _STAGES]
    params: Annotated[Mapping[str, Any], _PARAMS]
    revoke_siblings: Annotated[bool, flag()] = False
    ttl: Annotated[float, _LIFE] = TTL
    process: Annotated[Mapping[str, Any] | None, _PROCESS] = None
    overlap: Annotated[Overlap, choice(*OVERLAPS)] = "allow"
    deadline: Annotated[float | None, _LIFE] = None
    at_once: Annotated[int | None, whole(1)] = None

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps by their number."""
        return tuple(step for stage in self.stages for step in stage)

    @property
    def sizes(self) -> str:
        """Sizes of the stages, as the scripts read them."""
        return ",".join(str(len(stage)) for stage in self.stages)

    def stage_of(self, number: int) -> int:
        """Return the stage of a step by its number."""
        for index, stage in enumerate(self.stages):
            if number < len(stage):
                return index
            number -= len(stage)
        raise IndexError(number)

    def names(self, stage: int = 0) -> list[list[str]]:
        """Return the names of the steps, one list per stage, from ``stage`` on."""
        return [[step.name for step in steps] for steps in self.stages[stage:]]

    def data_of(self, stage: int) -> dict[str, Any] | None:
        """Return the data of the task process in a stage; ``None`` if it is no task process."""
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
        stored: dict[str, Any] = {
            "v": FORMAT,
            "sizes": [len(stage) for stage in self.stages],
            "steps": [_encode_step(step) for step in self.steps],
        }
        for name, field in _STORED.items():
            stored[name] = field.store(getattr(self, name))
        return dumps(stored)

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
            steps = iter([_decode_step(step) for step in stored["steps"]])
            stages = tuple(tuple(next(steps) for _ in range(size)) for size in stored["sizes"])
            fields = {
                name: field.load(stored[name]) for name, field in _STORED.items() if name in stored
            }
            return cls(stages, **fields)
        except (KeyError, TypeError, ValueError, RuntimeError) as exc:
            raise CorruptEntry(f"definition of a pipeline is not usable: {exc!r}") from exc


#: Fields that are stored under their names; the steps are stored apart.
_STORED = {name: field for name, field in fields_of(Definition).items() if name != "stages"}


def define(
    steps: Iterable[Any],
    params: Any = None,
    *,
    find: Callable[[str, str], str],
    note: Callable[[str], Mapping[str, Any]],
    revoke_siblings: bool = False,
    ttl: Any = TTL,
    process: Mapping[str, Any] | None = None,
    overlap: Overlap = "allow",
    deadline: Any = None,
    at_once: Any = None,
) -> Definition:
    """Check the arguments of a user, and return the definition that they make.

    Parameters:
        steps: ``(task, priority)`` pairs, or triples ``(name, task, priority)``.
        find: function of a task's name as the user wrote it, and of a field's name. It returns the
            registered name of the task, or raises InvalidEntry for the field.
        note: function that returns the values to store of a registered task.

    Raises:
        InvalidEntry: an argument is wrong; the error names it.
    """
    if isinstance(steps, (str, bytes, Mapping)) or not isinstance(steps, Iterable):
        raise InvalidEntry("steps", "a list of (task, priority)", steps)
    note = cache(note)
    parsed = [_parse(f"steps[{index}]", item, find, note) for index, item in enumerate(steps)]
    if not 0 < len(parsed) <= MAX_STEPS:
        raise InvalidEntry("steps", f"1 to {MAX_STEPS} steps", len(parsed))
    _check_names(parsed)
    # The sort is stable, so steps of a stage stay in the order of the user.
    ordered = sorted(parsed, key=lambda step: -step.priority)
    stages = tuple(tuple(stage) for _, stage in groupby(ordered, key=lambda step: step.priority))
    definition = Definition(
        stages,
        check_params("params", params),
        revoke_siblings=revoke_siblings,
        ttl=ttl,
        process=process,
        overlap=overlap,
        deadline=deadline,
        at_once=at_once,
    )
    # Return a copy, because the caller may still change the params and arguments that were checked.
    return Definition.decode(definition.encode())


def check_params(name: str, params: Any) -> dict[str, Any]:
    """Return params as a dict, which is empty for ``None``.

    Raises:
        InvalidEntry: the params are no JSON object.
    """
    checked: dict[str, Any] = _PARAMS.read(name, {} if params is None else params)
    pack(checked, name)
    return checked


def task_id(run_id: str, stage: int, number: int, round_: int) -> str:
    """Return the task id of a step: the same for every publisher and every copy."""
    return named_uuid(_NAMESPACE, f"{run_id}\0{stage}\0{number}\0{round_}")


def _parse(
    where: str,
    item: Any,
    find: Callable[[str, str], str],
    note: Callable[[str], Mapping[str, Any]],
) -> Step:
    """Return the step of one item of ``steps``.

    Parameters:
        where: the item's name in errors, such as ``steps[0]``.
        find, note: as for :func:`define`.
    """
    if not isinstance(item, (list, tuple)) or len(item) not in (2, 3):
        raise InvalidEntry(where, "a pair (task, priority)", item)
    *name, task, priority = item
    is_number = isinstance(priority, (int, float)) and not isinstance(priority, bool)
    if not is_number or not abs(priority) < 1e308:
        raise InvalidEntry(f"{where}.priority", "a number", priority)
    if isinstance(task, Signature):
        step = _parse_signature(where, task, priority)
    else:
        written = _text(f"{where}.task", getattr(task, "name", task))
        step = Step(written, written, priority)
    if name:
        step = replace(step, name=_text(f"{where}.name", name[0]))
    registered = find(step.task, f"{where}.task")
    return replace(step, task=registered, noted=note(registered))


def _parse_signature(where: str, signature: Signature, priority: float) -> Step:
    """Return the step of a signature, with its arguments and options."""
    if signature.get("subtask_type"):
        hint = "no chain, group or chord"
        raise InvalidEntry(where, "the signature of one task", signature, hint=hint)
    options = dict(signature.options)
    for refused in _REFUSED:
        if options.pop(refused, None):
            field_name = f"{where}.options.{refused}"
            raise InvalidEntry(field_name, "no such option in a step", signature)
    name = str(options.pop("shadow", None) or signature.task)
    args = tuple(signature.args)
    return Step(name, signature.task, priority, args, dict(signature.kwargs), options)


def _text(where: str, value: Any) -> str:
    """Return a name that is fit for people, or raise InvalidEntry."""
    if not isinstance(value, str) or not 0 < len(value) <= 200 or not value.isprintable():
        raise InvalidEntry(where, "1 to 200 printable characters", value)
    return value


def _check_names(steps: list[Step]) -> None:
    """Raise InvalidEntry if two steps have the same name."""
    names: set[str] = set()
    for index, step in enumerate(steps):
        if step.name in names:
            where = f"steps[{index}].name"
            hint = "name one of them with (name, task, priority)"
            raise InvalidEntry(where, "a name that no other step has", step.name, hint=hint)
        names.add(step.name)


def _encode_step(step: Step) -> list[Any]:
    """Return the stored form of a step."""
    where = f"step {step.name!r}: "
    return [
        step.name,
        step.task,
        step.priority,
        pack([*step.args], f"{where}args"),
        pack(step.kwargs, f"{where}kwargs"),
        pack(step.options, f"{where}options"),
        pack(step.noted, f"{where}noted"),
    ]


def _decode_step(stored: list[Any]) -> Step:
    name, task, priority, args, kwargs, options, noted = stored
    return Step(
        name, task, priority, tuple(unpack(args)), unpack(kwargs), unpack(options), unpack(noted)
    )
