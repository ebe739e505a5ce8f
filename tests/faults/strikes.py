"""Faults of workers, their beats and their server, drawn at random."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from redbeat_lite.entries.state import EntryState, task_id
from tests.faults.scenario import BACK, Scenario
from tests.harness import project
from tests.harness.history import now_ms
from tests.support.audit import Record
from tests.support.server import Server

#: Seconds for which the lock of a dead worker lasts. A live worker renews its lock in time, even on
#: a busy machine.
LEASE = 3

#: Options of kombu: a message that a dead worker had taken is redelivered after three seconds. By
#: default, that takes an hour.
TRANSPORT = {**project.TRANSPORT, "visibility_timeout": 3}


class Strikes:
    """Faults of workers, and of the leader and the server that they depend on.

    Each fault is over soon, and a process that ended is replaced. ``lease`` is that of the leader,
    in seconds.
    """

    #: The methods that are faults.
    names: tuple[str, ...] = (
        "kill_the_leader",
        "kill_a_worker",
        "lose_the_machine_of_a_worker",
        "kill_a_child",
        "stop_a_worker",
        "freeze_a_worker",
        "crash_the_server",
    )

    def __init__(self, scenario: Scenario, server: Server, lease: float) -> None:
        self._scenario = scenario
        self._server = server
        self._lease = lease
        #: Workers that may have had a message in hand when they or the server were killed.
        self.takers = 0

    def strike(self, names: Sequence[str] = ()) -> int:
        """Let each named fault happen once in random order, and go on while there is time.

        Without names, all faults happen. Returns how many there were.
        """
        order = list(names or self.names)
        count = 0
        while count < len(order) or self._scenario.left > 0:
            if count % len(order) == 0:
                self._scenario.chance.shuffle(order)
            name = order[count % len(order)]
            print(f"{now_ms()} {name}")
            getattr(self, name)()
            count += 1
            self._scenario.pause(0.2, 1)
            self._scenario.workers.revive()
        return count

    def kill_the_leader(self) -> None:
        self._scenario.kill_leader(self._lease)

    def kill_a_worker(self, *, whole: bool = False) -> None:
        workers = self._scenario.workers
        self.takers += 1
        workers.kill(workers.pick(), whole=whole)
        workers.start()

    def lose_the_machine_of_a_worker(self) -> None:
        self.kill_a_worker(whole=True)

    def kill_a_child(self) -> None:
        self._scenario.workers.kill_child()

    def stop_a_worker(self) -> None:
        workers = self._scenario.workers
        workers.stop(workers.pick())
        workers.start()

    def freeze_a_worker(self) -> None:
        with self._scenario.workers.pick().frozen():
            self._scenario.pause(0.2, LEASE / 2)

    def crash_the_server(self) -> None:
        began = now_ms()
        workers = self._scenario.workers
        self.takers += len(workers.running)
        with workers.loss_of_their_broker(), self._scenario.outage():
            self._server.stop(kill=True)
            self._scenario.pause(0.2, 1)
            self._server.start()
        # Workers may take a moment longer to connect again.
        ended = now_ms() + round(1000 * BACK)
        fault = {"kind": "fault", "what": "the server is away", "away": True}
        self._scenario.log.append(fault | {"began": began, "ended": ended})


def due_records(
    states: Mapping[str, EntryState],
    period: int,
    noted: str,
    before: Mapping[str, EntryState] | None = None,
) -> list[Record]:
    """Return a record of the runs of each entry that were due.

    Parameters:
        states: of the entries, when the last beat had ended.
        period: their interval in ms.
        noted: the kind of records that say what became of the runs.
        before: their states when the load began; by default, before their first run.
    """
    records = []
    for name, state in states.items():
        end = state.nominal or 0
        first_state = before[name] if before else state
        start = (first_state.nominal or 0) - period * (first_state.count + first_state.skipped)
        nominals = list(range(start, end, period))
        ids = [task_id(name, state.generation, nominal) for nominal in nominals]
        due = {"kind": "due", "entry": name, "nominals": nominals, "ids": ids}
        records.append(due | {"left_out": state.skipped, "noted": noted})
    return records
