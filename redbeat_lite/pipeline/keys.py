"""The keys of the pipelines, and what they hold.

The keys of one run carry its id in their braces, so that on Redis Cluster each run is in one hash slot of its own: the
runs spread over the cluster, and a script may touch everything of one run. The two indexes and the lines of entries
alone lie with the schedule's keys, and no script touches them together with others.

=====================  ======  ========================================================================================
key                    type    holds
=====================  ======  ========================================================================================
``{p}:pipelines``      zset    run id -> when the sweeper looks at it, epoch ms; every run that has not ended is in it
``{p}:ended-runs``     zset    run id -> when it ended, epoch ms; the latest 10,000, whose records may be gone
``{p}:turns:<entry>``  zset    ``<resumed>:<run id>`` -> its place in the line, of an entry whose pipeline does not
                               overlap: the first one runs, the others wait
``{p:run}:run``        hash    ``definition`` (JSON, without params), ``sizes`` of the stages, ``state``, ``stage``,
                               ``left`` (steps of it that have not ended), ``next`` (number of its first step that was
                               never in the outbox), ``created``, ``since`` (when it began, after its turn had come),
                               ``ended`` (ms), ``error_step`` (number), ``error``, ``filled`` (when the outbox was),
                               ``ttl``, ``keep``, ``deadline`` (ms), ``most`` (steps at once), ``revoke_siblings``,
                               ``revoke`` (1: running steps are still to be revoked), ``entry`` (that has started
                               it), ``attempt`` (of which, JSON: :class:`redbeat_lite.runs.attempt.Attempt`), ``waits``
                               (1: for its turn), ``resumed`` (how often)
``{p:run}:steps``      hash    number of a step that was published -> JSON: ``state``, ``round`` (grows each time it is
                               started anew), ``attempt`` (of Celery's retries), ``token`` of the copy that runs,
                               ``task`` (id), ``again`` (1: may run again after its worker died), ``deaths``,
                               ``started``, ``ended``, ``due`` (when its message counts as lost, ms), ``tries``,
                               ``beat`` (ms between two signs of its life), ``suspect`` (since when there was none),
                               ``worker``, ``error``, ``percent`` and ``note`` (what it told last); without what is 0
``{p:run}:results``    hash    ``stage:<k>`` -> the params that stage began with, of the first and of the last one
                               that began; number of a step -> what it returned: JSON that no script looks into
``{p:run}:outbox``     hash    number of a step to be published -> ``<round>.<attempt>``
``{p:run}:gone``       string  how the run ended; outlives its record, to tell one that is gone from one that never was
=====================  ======  ========================================================================================

Steps are numbered from 0, by stage and by their place in it. ``run``, ``steps`` and ``results`` live for ``ttl`` after
the end of the run; before it, for ``keep`` after anybody last looked, the sweeper included. The state of a step that
never began is not stored: it waits, or it was aborted with its run.
"""

from __future__ import annotations

from typing import NamedTuple

from ..settings import key_root

#: Name of the task that starts a run for an entry; its own id becomes the run's.
START = "redbeat_lite.start_pipeline"


class RunKeys(NamedTuple):
    """The keys of one run, as the scripts take them."""

    run: str
    steps: str
    results: str
    outbox: str
    gone: str

    @classmethod
    def of(cls, prefix: str, run_id: str) -> RunKeys:
        """Name them under ``prefix``, for example ``"redbeat-lite"``."""
        without_brace = key_root(prefix).removesuffix("}")
        root = f"{without_brace}:{run_id}}}"
        return cls(*(f"{root}:{part}" for part in cls._fields))


def index_key(prefix: str) -> str:
    """The name of the index of runs that have not ended."""
    return f"{key_root(prefix)}:pipelines"


def ended_key(prefix: str) -> str:
    """The name of the index of runs that have."""
    return f"{key_root(prefix)}:ended-runs"


def turns_key(prefix: str, entry: str) -> str:
    """The name of the line of an entry's runs."""
    return f"{key_root(prefix)}:turns:{entry}"


def turn(run_id: str, resumed: int) -> str:
    """How a run stands in a line: each time otherwise, so that who is late to take it off takes off what has ended."""
    return f"{resumed}:{run_id}"


def run_of(turn: str) -> str:
    """Which run stands so in a line."""
    return turn.partition(":")[2]
