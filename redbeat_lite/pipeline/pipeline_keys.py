"""The keys of pipelines, and their values.

The keys of one run have its id in their braces. So on Redis Cluster all keys of one run lie in one
hash slot, a script may change them together, and the runs spread over the cluster. The two indexes
and the waiting lines of entries lie in the slot of the schedule's keys. No script touches them
together with other keys.

=====================  ======  ===================================================================
key                    type    value
=====================  ======  ===================================================================
``{p}:pipelines``      zset    ``<resumed>:<run id>`` -> when the sweeper checks it, epoch ms; all
                               runs that have not ended
``{p}:ended-runs``     zset    run id -> when it ended, epoch ms; the latest 10,000. The record of
                               such a run may have expired, or the run may have been resumed
``{p}:turns:<entry>``  zset    waiting line of an entry whose runs may not overlap:
                               ``<resumed>:<run id>`` -> its place in the line. The first run is
                               under way, the others wait
``{p:run}:run``        hash    the run:

                               - ``definition`` (JSON, without params), ``ends`` (JSON: the count
                                 of steps up to the end of each stage)
                               - ``state``, ``stage``, ``left`` (its steps that have not ended)
                               - ``created``, ``since`` (its start, after its turn had come),
                                 ``ended``, epoch ms
                               - ``error_step`` (number), ``error``
                               - ``ttl``, ``deadline`` (ms), ``most`` (steps at once)
                               - ``revoke_siblings``; ``revoke`` (1: the steps that still run
                                 are to be killed)
                               - ``entry`` that started it, and ``attempt`` (JSON:
                                 :class:`redbeat_lite.entries.run.Attempt`)
                               - ``overlap`` (policy of a run of an entry), ``resumed`` (how often)
``{p:run}:steps``      hash    number of a step, from the time when it may be published -> JSON:

                               - ``state``, ``round`` (grows when it is started again),
                                 ``attempt`` (of Celery's retries), ``token`` of the running copy
                               - ``again`` (1: may run again after its worker died), ``deaths``,
                                 ``started``, ``ended``, ``worker``, ``error``
                               - ``due`` (when its message counts as lost, ms; without it, no
                                 message was published), ``tries`` (count of messages)
                               - ``beat`` (ms between two signs of life), ``suspect`` (since when
                                 its worker is suspected to be gone), ``until_ms`` (the end of the
                                 guard's record for which it is suspected)
                               - ``percent`` and ``note`` (its last progress)
``{p:run}:results``    hash    ``stage:<k>`` -> params at the start of that stage, of the first and
                               of the latest stage; number of a step -> its result: JSON that no
                               script reads
``{p:run}:gone``       string  final state of the run. It outlives the run's record, so that an
                               expired run differs from one that never existed
=====================  ======  ===================================================================

Steps are numbered from 0, by stage and by their place in it. ``run``, ``steps`` and ``results``
expire ``ttl`` after the end of the run. Before the end, they expire a week (or ``ttl``, if that is
longer) after the last change, or check by a sweeper. A step without a record waits until its stage
begins and the limit of steps at once lets it be published, or was aborted with its run.
"""

from __future__ import annotations

from typing import NamedTuple

from ..settings import key_root

#: Name of the task that starts a run for an entry. The run gets the id of this task.
START = "redbeat_lite.start_pipeline"


class RunKeys(NamedTuple):
    """The keys of one run, in the order that the scripts take them."""

    run: str
    steps: str
    results: str
    gone: str

    @classmethod
    def of(cls, prefix: str, run_id: str) -> RunKeys:
        """Return the keys of a run under ``prefix``, for example ``"redbeat-lite"``."""
        # key_root() is "{prefix}", with braces. The keys of a run begin with "{prefix:<run id>}".
        root = f"{key_root(prefix).removesuffix('}')}:{run_id}}}"
        return cls(*(f"{root}:{part}" for part in cls._fields))


def index_key(prefix: str) -> str:
    """Return the key of the index of runs that have not ended."""
    return f"{key_root(prefix)}:pipelines"


def ended_key(prefix: str) -> str:
    """Return the key of the index of ended runs."""
    return f"{key_root(prefix)}:ended-runs"


def turns_key(prefix: str, entry: str) -> str:
    """Return the key of the waiting line of an entry's runs."""
    return f"{key_root(prefix)}:turns:{entry}"


def turn(run_id: str, resumed: int) -> str:
    """Return the member that stands for a run in a waiting line, and in the index of unended runs.

    The member differs after each resume. So a process that removes an ended run late does not
    remove the resumed run.

    Parameters:
        resumed: how often the run was resumed.
    """
    return f"{resumed}:{run_id}"
