"""Reading a pickle as data: no class is looked up, nothing is called, and nothing is hashed or compared.

What a pickle would build by calling something is an :class:`Instance` that names it. So a hostile file can neither run
code, nor change a class of this process, nor have it compute for long: each step costs what its bytes do. What Python
writes since protocol 3 is read.
"""

from __future__ import annotations

import pickletools
import re
from functools import partialmethod
from typing import Any, NamedTuple

#: Longest pickle that is read, in bytes. Celery needs some 120 to 200 for an entry, so thousands of them fit;
#: at the worst each byte becomes a dict of its own, and all of them take some 120 MB and two or three seconds.
LONGEST = 2**20


class Class(NamedTuple):
    """What a pickle names in a module."""

    module: str
    name: str


class Mapping(list[tuple[Any, Any]]):
    """The pairs of a dict in their order."""

    __slots__ = ()

    def texts(self) -> dict[str, Any]:
        """The pairs whose keys are text."""
        return {key: value for key, value in self if isinstance(key, str)}


class Instance:
    """What a pickle would make by a call of a :class:`Class`, or of an :class:`Instance` again, with arguments."""

    __slots__ = ("args", "made_by", "state")

    def __init__(self, made_by: Any, args: Any) -> None:
        self.made_by = made_by
        self.args: tuple[Any, ...] = args if isinstance(args, tuple) else ()
        self.state: Any = None  #: what it is given afterwards


def load(raw: bytes) -> Any:
    """The data of a pickle. Sets are lists; dicts are :class:`Mapping`.

    Raises ValueError, IndexError, KeyError or TypeError if it is none, or is too long.
    """
    if len(raw) > LONGEST:
        raise ValueError(f"{len(raw)} bytes; at most {LONGEST} are read")
    machine = _Machine()
    for opcode, arg, at in pickletools.genops(raw):
        if opcode.name in ("PROTO", "FRAME", "STOP"):
            continue
        if opcode.name in _CONSTANTS:
            machine.push(_CONSTANTS[opcode.name])
        elif opcode.name in _EMPTY:
            machine.push(_EMPTY[opcode.name]())
        elif _VALUE.fullmatch(opcode.name):
            machine.push(arg)
        else:
            operation = getattr(machine, f"on_{opcode.name}", None)
            if operation is None:
                raise ValueError(f"{opcode.name} at {at}, which no plain pickle has")
            operation(arg)
    return machine.stack.pop()


_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, type] = {"EMPTY_DICT": Mapping, "EMPTY_LIST": list, "EMPTY_SET": list, "EMPTY_TUPLE": tuple}
#: Those that push their argument.
_VALUE = re.compile(r".*(INT[12]?|LONG[14]?|FLOAT|STRING|UNICODE8?|BYTES8?|BYTEARRAY8)")


class _Machine:
    """The stacks and the memo; a method for each opcode that changes them."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._outer: list[list[Any]] = []
        self._memo: dict[int, Any] = {}

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def _since_mark(self) -> list[Any]:
        found, self.stack = self.stack, self._outer.pop()
        return found

    def _last(self, number: int) -> list[Any]:
        found = self.stack[-number:]
        del self.stack[-number:]
        return found

    def on_MARK(self, arg: None) -> None:
        self._outer.append(self.stack)
        self.stack = []

    def on_POP(self, arg: None) -> None:
        self.stack.pop()

    # -- the memo -----------------------------------------------------------------------------------------------------

    def on_MEMOIZE(self, arg: None) -> None:
        self._memo[len(self._memo)] = self.stack[-1]

    def on_BINPUT(self, number: int) -> None:
        self._memo[number] = self.stack[-1]

    def on_BINGET(self, number: int) -> None:
        self.push(self._memo[number])

    on_LONG_BINPUT, on_LONG_BINGET = on_BINPUT, on_BINGET

    # -- containers ---------------------------------------------------------------------------------------------------

    def on_TUPLE(self, arg: None) -> None:
        self.push(tuple(self._since_mark()))

    def _tuple(self, length: int, arg: None) -> None:
        self.push(tuple(self._last(length)))

    on_TUPLE1, on_TUPLE2, on_TUPLE3 = partialmethod(_tuple, 1), partialmethod(_tuple, 2), partialmethod(_tuple, 3)

    def on_FROZENSET(self, arg: None) -> None:
        self.push(self._since_mark())

    def on_APPEND(self, arg: None) -> None:
        self._extend(self._last(1))

    def on_APPENDS(self, arg: None) -> None:
        self._extend(self._since_mark())

    on_ADDITEMS = on_APPENDS

    def on_SETITEM(self, arg: None) -> None:
        self._extend([tuple(self._last(2))])

    def on_SETITEMS(self, arg: None) -> None:
        items = self._since_mark()
        self._extend([*zip(items[::2], items[1::2], strict=True)])

    def _extend(self, items: list[Any]) -> None:
        # What a list or dict of somebody's own class holds is not asked for.
        if isinstance(self.stack[-1], list):
            self.stack[-1].extend(items)

    # -- what would be called -----------------------------------------------------------------------------------------

    def on_GLOBAL(self, names: str) -> None:
        module, _, name = names.partition(" ")
        self.push(Class(module, name))

    def on_STACK_GLOBAL(self, arg: None) -> None:
        self.push(Class(*self._last(2)))

    def on_REDUCE(self, arg: None) -> None:
        self.push(Instance(*self._last(2)))

    on_NEWOBJ = on_REDUCE

    def on_NEWOBJ_EX(self, arg: None) -> None:
        self.stack.pop()  # by name
        self.on_REDUCE(arg)

    def on_BUILD(self, arg: None) -> None:
        state = self.stack.pop()
        if isinstance(self.stack[-1], Instance):
            self.stack[-1].state = state
