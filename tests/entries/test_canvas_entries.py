"""Chains, groups and chords as the task of an entry: how they are stored, and what is told of them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from celery import chain, chord, group, signature

from redbeat_lite import Entry
from redbeat_lite.entries.canvas import CANVAS, call_text, sent_tasks
from redbeat_lite.entries.model import encode
from redbeat_lite.entries.stored_entry import decode
from tests.support.cases import together

Make = Callable[[], Any]


def task(name: str, *args: Any, **options: Any) -> Any:
    return signature(name, args, options=options)


CANVASES: dict[str, tuple[Make, str, set[str]]] = {
    "chain": (lambda: chain(task("shop.a", 1), task("shop.b")), "shop.a(1) | b()", {"shop.a", "shop.b"}),
    "group": (lambda: group(task("shop.a", n) for n in (1, 2)), "group([shop.a(1), a(2)])", {"shop.a"}),
    "chord": (
        lambda: chord([task("shop.a", 1), task("shop.b")], task("shop.c")),
        "%shop.c([a(1), b()])",
        {"shop.a", "shop.b", "shop.c"},
    ),
    "nested": (
        lambda: chain(task("shop.a", {"task": "x"}), group(task("b"), chain(task("c"), task("d")))),
        "shop.a({'task': 'x'}) | group([b(), c() | d()])",
        {"shop.a", "b", "c", "d"},
    ),
}


@together("kind", CANVASES)
def test_a_canvas_is_stored_and_told(kind: str) -> None:
    make, text, tasks = CANVASES[kind]
    entry = Entry("e", make(), 60, options={"queue": "slow"})
    assert (entry.task, entry.kwargs, entry.options) == (CANVAS, {}, {"queue": "slow"})
    again = decode("e", encode(entry).encode())
    assert again == entry == Entry("e", make(), 60, options={"queue": "slow"})
    assert encode(again) == encode(entry)
    assert call_text(again.task, again.args) == text
    assert sent_tasks(again.task, again.args) == {CANVAS, *tasks}
    assert again == entry  # Celery writes into what it reads.


def test_members_keep_their_options_and_the_types_of_their_arguments() -> None:
    instant = datetime(2026, 3, 1, tzinfo=UTC)
    entry = Entry("e", chain(task("a", instant, queue="fast", priority=3), task("b")), 60)
    [canvas] = decode("e", encode(entry).encode()).args
    first = canvas["kwargs"]["tasks"][0]
    assert first["options"] == {"queue": "fast", "priority": 3}
    assert first["args"] == [instant]


def test_an_entry_can_be_given_another_canvas_or_task() -> None:
    entry = Entry("e", signature("a", (1,), {"x": 1}), 60).replace(task=chain(task("a"), task("b")))
    assert (entry.task, entry.kwargs) == (CANVAS, {})
    assert entry.replace(task=signature("a", (2,))).args == (2,)


@together("args", [(), ({},), ("x",), ({"task": 7, "subtask_type": "chain", "kwargs": []},)])
def test_what_is_no_canvas_is_told_as_its_task(args: Any) -> None:
    assert call_text(CANVAS, args) in (CANVAS, "None()")
    assert CANVAS in sent_tasks(CANVAS, args)


def test_what_looks_like_a_canvas_in_the_arguments_of_another_task_is_none() -> None:
    args = (dict(chain(task("a"), task("b"))),)
    assert (call_text("t", args), sent_tasks("t", args)) == ("t", {"t"})
