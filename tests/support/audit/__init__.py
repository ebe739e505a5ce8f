"""History of a schedule, and its laws. Nothing here knows the package.

A history is a list of records, one JSON object a line. All instants are epoch milliseconds of one
clock. The fields of a record depend on its ``kind``; those in brackets may be missing.

Of the history itself:

``setup``
    Its bounds: the fields of `tests.support.audit.history.Setup`.
``fault``
    From ``began`` to ``ended`` something was broken, so that runs may be late. With ``recovered``
    and ``back``, some message has to come within ``back`` ms of the instant ``recovered``.
    ``pids`` are the processes that it froze. If it is ``away``, nobody could write to the server.
``death``
    The process ``pid``, or the main process of its worker, was killed ``at`` this instant.
``end``
    The watching ended ``at`` this instant.

Of schedules, with the laws in `tests.support.audit.schedule`:

``call``
    What somebody asked for: ``act``, ``entry``, ``began``, ``returned`` (``null``: never), ``ok``
    (``null``: unknown, as the reply was lost). ``add`` and ``edit`` have a ``rule``, and may have
    ``misfire`` (``coalesce``, ``skip`` or ``all``), ``grace`` (ms; of ``skip`` 5000 or a quarter of
    the interval by default), ``limit`` and ``max_runs``: an edit has to say them again. They may
    also have ``punctual``: ms after its nominal time by which a run comes that is not due in a
    fault; and ``silent``: ms from one message of the entry to the next, at most. An edit may have
    ``if_version``, and ``version`` as returned. ``pause``, ``resume`` and ``remove`` have no more
    fields. A freeze has no entry and is for all, or it has a list ``entries``. A freeze and the
    thaw that ends it may have the same ``freeze``; any other thaw ends all of them.
``sent``
    A message arrived in a queue: ``entry``, ``nominal``, ``id``, ``at``, and ``by``: ``"rule"``,
    ``"hand"`` or ``"backfill"``, then with its name ``backfill``. With ``sender``, the process that
    sent it; with ``since``, the instant before which it was not in the queue, in place of the
    setup's ``slack``; and with ``left``, the instant at which it was sent off.
``left out``
    The product said ``at`` this instant that it does not send the runs of an ``entry`` with these
    ``nominals``, because another task had its once-lock.
``backfill``
    What the product said of one at the end: its name ``backfill``, ``entry``, first and last
    nominal time ``start`` and ``end``, how many runs it has ``sent``, and ``ended``: ``"done"`` if
    it has sent them all.
``term``
    The process ``sender`` ``began`` to lead. Where terms are noted, only leaders may send.

Of task bodies and pipelines, with the laws in `tests.support.audit.work`:

``body``
    A task ran: ``id``, ``key`` (or ``null``), ``began``, ``ended`` (at its end or its death),
    ``done``, and perhaps
    ``finished``: it came to its end, perhaps without its worker hearing of it;
    ``fence``: the number that its lock gave it;
    ``place``: its place among those that waited for the key;
    ``holds``: ms for which it may keep the key;
    ``lost``: it knew that its lock was lost;
    ``pid``: the id of its process;
    ``copies``: copies of its message may run as well;
    ``run``, ``step``, ``stage`` and ``succeeded``: it ran as a step of a pipeline;
    ``entry``, ``attempt`` (from 0) and ``end``: ``well``, ``ill``, or ``again`` if it is retried.
``task``
    A task was sent that has to run to its end: ``id``.
``clear``
    Somebody removed the lock of a ``key`` ``at`` this instant, although a body may have held it.
``run``
    A pipeline was started: ``id``, ``steps`` (name -> stage, from 0), and perhaps
    ``at_once``: the number of its steps that may run at a time;
    ``line``: no two runs of a line may run at a time;
    ``fails``: the test lets it fail or cancels it, so its bodies may run on after it has ended.
``success``
    The package reported that a ``step`` of a ``run`` succeeded ``at`` this instant.

Of what became of runs, with the laws in `tests.support.audit.runs`:

``due``
    All runs of an ``entry`` that were due: their ``nominals``, and the ``ids`` that they have or
    would have. ``left_out`` says how many of them the beat left out. ``noted`` is the kind of
    records that say what became of them: ``received`` or ``outcome``.
``received``
    A worker received the message of a task ``id``. ``stayed`` says whether that worker ran to the
    end of the history and never lost its broker.
``refused``
    A worker did not run the task ``id``, because another run held its lock.
``lock``
    The lock of the task ``id`` was last seen ``at`` this instant, while the task was running.
``outcome``
    The package's record of a run of an ``entry``: its ``outcome``, the task ``id`` or ``null``, the
    ``nominals`` that it covers, and the number of ``attempts``.

A rule is ``{"every": ms}`` with an optional ``"phase"``, or ``{"at": [ms, …]}``.

Where two calls overlap, or the reply to one was lost, either order is accepted. So the checker
never complains of a sound history. It may miss a fault that no outsider could prove.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator

from tests.support.audit.history import Broken, History, Record, Violation
from tests.support.audit.runs import RUN_LAWS, Runs
from tests.support.audit.schedule import ENTRY_LAWS, SENDER_LAWS
from tests.support.audit.work import PIPELINE_LAWS, WORK_LAWS, pipelines

__all__ = ["History", "Record", "Violation", "check", "violations"]


def violations(history: History) -> list[Violation]:
    """Return everything that breaks a law, in the order of the laws.

    The name of a law is that of its function.
    """
    broken: list[Violation] = []

    def apply(law: Callable[..., Iterator[Broken]], *subject: object) -> None:
        name = law.__name__.replace("_", " ")
        broken.extend(Violation(name, *violation) for violation in law(*subject))

    for entry_law in ENTRY_LAWS:
        for entry in history.entries.values():
            apply(entry_law, history, entry)
    for law in (*SENDER_LAWS, *WORK_LAWS):
        apply(law, history)
    for pipeline_law in PIPELINE_LAWS:
        for pipeline in pipelines(history):
            apply(pipeline_law, pipeline)
    runs = Runs(history)
    for run_law in RUN_LAWS:
        apply(run_law, runs)
    return broken


def check(records: Iterable[Record]) -> None:
    """Raise AssertionError if these records break a law.

    It names at most 20 violations, and shows at most 40 lines of theirs.
    """
    records = list(records)
    broken = violations(History(records))
    lines = sorted({line for violation in broken[:20] for line in violation.lines})
    words = [str(violation) for violation in broken[:20]]
    words += [f"line {line}: {json.dumps(records[line - 1])}" for line in lines[:40]]
    assert not broken, "\n".join([f"{len(broken)} violations:", *words])
