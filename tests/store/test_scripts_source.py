"""Where the text of the scripts comes from, and the names of their KEYS and ARGS."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import redbeat_lite
from redbeat_lite.once.claims import Claim, Hold
from redbeat_lite.once.lock_store import OnceKeys, TaskKeys
from redbeat_lite.pipeline.definition import Ref
from redbeat_lite.pipeline.pipeline_keys import RunKeys
from redbeat_lite.runs.run_store import RunKeys as RecordKeys
from redbeat_lite.store.keys import Keys
from redbeat_lite.store.records import Term
from redbeat_lite.store.scripts import _FILES, _names, command_of, source
from tests.support.cases import together

_LOOK = """
import sys
from redbeat_lite.store.scripts import _FILES, source

events = []
sys.addaudithook(lambda event, args: events.append((event, args)) if event in ("import", "open") else None)
assert len([source(name) for name in _FILES]) > 20
assert not events, events
"""

#: All scripts but the parts that several share.
NAMED = sorted(name for name in _FILES if not name.startswith("shared/"))


def test_no_script_is_looked_for_at_its_first_use() -> None:
    """A thread may be at it while another one forks, and the child would inherit the locks of its imports."""
    subprocess.run([sys.executable, "-c", _LOOK], check=True, timeout=60)


def names_of(script: str) -> list[str]:
    """The names of KEYS and ARGS."""
    return [name for kind in ("KEYS", "ARGS") for name in _names(script, kind)]


@together("script", NAMED)
def test_each_name_is_used_and_nothing_is_counted(script: str) -> None:
    names = names_of(script)
    assert len({*names}) == len(names)
    code = re.sub(r"--.*", "", source(script))
    words = Counter(re.findall(r"[A-Za-z_]\w*", code))
    # The first time is where it is made a local; a list is named twice there.
    assert [name for name in names if words[name] < 2 + code.count(f"local {name} = {{}} for n")] == []
    # A local of the same name would hide it.
    made = re.findall(r"\blocal (?:function )?([\w, ]+)", re.sub(r"--.*", "", _FILES[script]))
    assert {*names}.isdisjoint(name.strip() for several in made for name in several.split(","))
    assert not re.search(r"\b(KEYS|ARGV)\b", re.sub(r"--.*", "", _FILES[script]))


def calls() -> Iterator[tuple[str, set[str]]]:
    """Each call of a script in the package: its name, and the names of its values."""
    for path in Path(redbeat_lite.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            for argument in node.args:
                if isinstance(argument, ast.Constant) and argument.value in NAMED:
                    yield str(argument.value), {str(word.arg) for word in node.keywords}


#: Classes whose attributes have names of KEYS and ARGS.
SOURCES = (Keys, OnceKeys(""), TaskKeys("", ""), Hold("", "", 0, 0), Claim, RecordKeys(""), RunKeys, Ref, Term("", 0))


def test_each_script_is_called_with_its_names() -> None:
    called = set()
    for script, values in calls():
        called.add(script)
        for name in names_of(script):
            is_attribute = any(hasattr(source, name) for source in SOURCES)
            assert name in values or is_attribute, f"{script} lacks {name}"
        assert values <= {*names_of(script)}, f"{script} takes no {values - {*names_of(script)}}"
    assert called == {*NAMED}


def test_a_wrong_name_is_an_error() -> None:
    class Places:
        due, entries = "{p}:due", "{p}:entries"
        state = "{p}:state"

    assert command_of("schedule/read", Places, first=0, last=1, names=["a"])[-3:] == (0, 1, "a")
    with pytest.raises(TypeError, match="schedule/read lacks 'last'"):
        command_of("schedule/read", Places, first=0, names=())
    with pytest.raises(TypeError, match="schedule/read takes no limit"):
        command_of("schedule/read", Places, first=0, last=1, names=(), limit=2)
    with pytest.raises(TypeError, match="schedule/read lacks 'entries'"):
        command_of("schedule/read", first=0, last=1, names=())


def test_a_key_that_is_left_out_is_none_in_the_script() -> None:
    keys = TaskKeys("{p}:guard:a", "{p}:once:index")
    command = command_of("once/renew", keys, Hold("t", "a", 0, 1), revive=0, fence=0)
    assert [*command[3:6]] == ["{p}:guard:a", "{p}:guard:a", "{p}:once:index"]
    assert "local lock = KEYS[2] ~= KEYS[1] and KEYS[2] or nil\n" in source("once/renew")
