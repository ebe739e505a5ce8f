"""What a pipeline is: steps by stage, and params. Pure: knows no Redis, and of an app only the tasks' names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import groupby
from typing import Any, Literal, get_args
from uuid import NAMESPACE_OID, uuid5

from celery.canvas import Signature

from ..errors import CorruptEntry, InvalidEntry, UnsupportedFormat
from ..once.policy import check_seconds
from ..storage.json_values import dumps, loads, pack, unpack
from ..uuids import named_uuid

#: Version of the stored definition.
FORMAT = 1

#: Most steps of a pipeline: what one script may look at.
MAX_STEPS = 1000

#: Seconds that the record of a run lives after its end: a week.
TTL = 7 * 86_400.0

#: The longest one that a run may ask for, in seconds: a century. A server takes no expiry that leads too far.
MAX_TTL = 36_525 * 86_400.0

#: What becomes of a run that an entry starts while another one of it has not ended.
Overlap = Literal["allow", "skip", "wait"]
OVERLAPS = get_args(Overlap)

_NAMESPACE = uuid5(NAMESPACE_OID, "redbeat_lite.pipeline").bytes

#: Fields of a definition that are stored as they are.
_PLAIN = ("revoke_siblings", "ttl", "overlap", "deadline", "at_once")

#: Options of a signature that would go their own way beside the pipeline's.
_REFUSED = ("link", "link_error", "chord", "group_id", "task_id", "reply_to")


@dataclass(frozen=True, slots=True)
class Step:
    """One task of a pipeline.

    Parameters:
        name: what people and :meth:`RunStatus.step` call it.
        priority: higher ones go first.
        args, kwargs: further arguments, after the params.
        noted: what its message takes from the task.
    """

    name: str
    task: str
    priority: float
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    noted: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Definition:
    """A valid pipeline: stages in the order of their priority, steps within them in the order they were given.

    Parameters:
        stages: the steps, by stage.
        params: what the first stage gets.
        revoke_siblings: whether a failure revokes what runs beside it.
        ttl: seconds that the record lives after the end.
        process: the data of a task process without its params, which its steps get instead of the params alone.
        overlap: what becomes of a run while another one of the same entry has not ended.
        deadline: seconds after which a run that has not ended fails.
        at_once: how many steps of a run are published at most that have not ended; ``None``: all of its stage.
    """

    stages: tuple[tuple[Step, ...], ...]
    params: Mapping[str, Any]
    revoke_siblings: bool = False
    ttl: float = TTL
    process: Mapping[str, Any] | None = None
    overlap: Overlap = "allow"
    deadline: float | None = None
    at_once: int | None = None

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps by their number."""
        return tuple(step for stage in self.stages for step in stage)

    @property
    def sizes(self) -> str:
        """The sizes of the stages as the scripts read them."""
        return ",".join(str(len(stage)) for stage in self.stages)

    def stage_of(self, number: int) -> int:
        """In which stage the step of this number is."""
        for index, stage in enumerate(self.stages):
            if number < len(stage):
                return index
            number -= len(stage)
        raise IndexError(number)

    def names(self, stage: int = 0) -> list[list[str]]:
        """The names of the steps by stage, from ``stage`` on: the ``queue`` of a task process."""
        return [[step.name for step in each] for each in self.stages[stage:]]

    def data_of(self, stage: int) -> dict[str, Any] | None:
        """The data of the task process in a stage; ``None``: it is none."""
        return None if self.process is None else {**self.process, "queue": self.names(stage)}

    def numbers(self, stage: int) -> range:
        """The numbers of the steps of a stage."""
        first = sum(len(each) for each in self.stages[:stage])
        return range(first, first + len(self.stages[stage]))

    def encode(self) -> str:
        """As JSON text; raises InvalidEntry if an argument or an option of a step cannot be stored."""
        stored = {
            "v": FORMAT,
            "sizes": [len(stage) for stage in self.stages],
            "steps": [_encode_step(step) for step in self.steps],
            "params": pack(self.params, "params"),
            "process": pack(self.process, "data"),
        }
        return dumps(stored | {name: getattr(self, name) for name in _PLAIN})

    @classmethod
    def decode(cls, text: str | bytes) -> Definition:
        """The inverse of :meth:`encode`.

        Raises:
            CorruptEntry: it is no definition.
            UnsupportedFormat: a newer version of this package wrote it.
        """
        stored = loads(text)
        if not isinstance(stored, dict):
            raise CorruptEntry("definition of a pipeline is not an object")
        if isinstance(stored.get("v"), int) and stored["v"] > FORMAT:
            raise UnsupportedFormat(f"definition of a pipeline has format {stored['v']}; this reads up to {FORMAT}")
        try:
            steps = iter([_decode_step(step) for step in stored["steps"]])
            stages = tuple(tuple(next(steps) for _ in range(size)) for size in stored["sizes"])
            params, process = unpack(stored["params"]), unpack(stored["process"])
            return cls(stages, params, process=process, **{name: stored[name] for name in _PLAIN if name in stored})
        except (KeyError, TypeError, ValueError, RuntimeError) as exc:
            raise CorruptEntry(f"definition of a pipeline is not usable: {exc!r}") from exc


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
    """Check what a user wrote and make a definition of it.

    Parameters:
        steps: ``(task, priority)`` pairs; or with a name in front of them, ``(name, task, priority)``.
        find: gives the registered name of a task as somebody wrote it, or raises ``InvalidEntry`` for the field that is
            its second argument.
        note: gives what the messages of a registered task take from it, as values that can be stored.

    Raises:
        InvalidEntry: something is wrong; names what.
    """
    if isinstance(steps, (str, bytes, Mapping)) or not isinstance(steps, Iterable):
        raise InvalidEntry("steps", "a list of (task, priority)", steps)
    note = cache(note)
    parsed = [_parse(f"steps[{index}]", item, find, note) for index, item in enumerate(steps)]
    if not 0 < len(parsed) <= MAX_STEPS:
        raise InvalidEntry("steps", f"1 to {MAX_STEPS} steps", len(parsed))
    _check_names(parsed)
    if not isinstance(revoke_siblings, bool):
        raise InvalidEntry("revoke_siblings", "true or false", revoke_siblings)
    # Sorting is stable: within a stage the steps stay in the order they were given.
    ordered = sorted(parsed, key=lambda step: -step.priority)
    stages = tuple(tuple(stage) for _, stage in groupby(ordered, key=lambda step: step.priority))
    if overlap not in OVERLAPS:
        raise InvalidEntry("overlap", f"one of {', '.join(OVERLAPS)}", overlap)
    if at_once is not None and (isinstance(at_once, bool) or not isinstance(at_once, int) or at_once < 1):
        raise InvalidEntry("at_once", "None or a number of steps, at least 1", at_once)
    limit = None if deadline is None else float(check_seconds("deadline", deadline, most=MAX_TTL))
    more = (float(check_seconds("ttl", ttl, most=MAX_TTL)), process, overlap, limit, at_once)
    definition = Definition(stages, check_params("params", params), revoke_siblings, *more)
    # A copy, of what can be stored: the caller may still change the params and arguments that were checked.
    return Definition.decode(definition.encode())


def check_params(name: str, params: Any) -> dict[str, Any]:
    """``params`` as a dict that can be stored, empty for ``None``; raises InvalidEntry if it is no JSON object."""
    if params is None:
        return {}
    if not isinstance(params, dict):
        raise InvalidEntry(name, "a JSON object (a dict)", params)
    pack(params, name)
    return params


def task_id(run_id: str, stage: int, number: int, round_: int) -> str:
    """The id of a step's task: the same whoever publishes it, and however often."""
    return named_uuid(_NAMESPACE, f"{run_id}\0{stage}\0{number}\0{round_}")


def _parse(where: str, item: Any, find: Callable[[str, str], str], note: Callable[[str], Mapping[str, Any]]) -> Step:
    if not isinstance(item, (list, tuple)) or len(item) not in (2, 3):
        raise InvalidEntry(where, "a pair (task, priority)", item)
    *name, task, priority = item
    if isinstance(priority, bool) or not isinstance(priority, (int, float)) or not abs(priority) < 1e308:
        raise InvalidEntry(f"{where}.priority", "a number", priority)
    if isinstance(task, Signature):
        step = _of_signature(where, task, priority)
    else:
        written = _text(f"{where}.task", getattr(task, "name", task))
        step = Step(written, written, priority)
    full = find(step.task, f"{where}.task")
    return replace(step, name=_text(f"{where}.name", name[0]) if name else step.name, task=full, noted=note(full))


def _of_signature(where: str, signature: Signature, priority: float) -> Step:
    if signature.get("subtask_type"):
        raise InvalidEntry(where, "the signature of one task", signature, hint="no chain, group or chord")
    options = dict(signature.options)
    for refused in _REFUSED:
        if options.pop(refused, None):
            raise InvalidEntry(f"{where}.options.{refused}", "no such option in a step", signature)
    name = options.pop("shadow", None) or signature.task
    return Step(str(name), signature.task, priority, tuple(signature.args), dict(signature.kwargs), options)


def _text(where: str, value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 200 or not value.isprintable():
        raise InvalidEntry(where, "1 to 200 printable characters", value)
    return value


def _check_names(steps: list[Step]) -> None:
    seen: set[str] = set()
    for index, step in enumerate(steps):
        if step.name in seen:
            hint = "name one of them with (name, task, priority)"
            raise InvalidEntry(f"steps[{index}].name", "a name that no other step has", step.name, hint=hint)
        seen.add(step.name)


def _encode_step(step: Step) -> list[Any]:
    where = f"step {step.name!r}: "
    parts = {"args": [*step.args], "kwargs": step.kwargs, "options": step.options, "noted": step.noted}
    return [step.name, step.task, step.priority, *(pack(value, where + name) for name, value in parts.items())]


def _decode_step(stored: list[Any]) -> Step:
    name, task, priority, args, kwargs, options, noted = stored
    return Step(name, task, priority, tuple(unpack(args)), unpack(kwargs), unpack(options), unpack(noted))
