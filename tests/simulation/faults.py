"""The faults that a seed may draw, each as a thread of the world that strikes again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.simulation.network import Loss
from tests.simulation.values import Refusal
from tests.simulation.world import MICROS, Process

if TYPE_CHECKING:
    from tests.simulation.scenario import Scenario

#: Faults that meet single requests, and how likely they do so.
LOSSES = {
    "request lost": Loss.BEFORE,
    "reply lost": Loss.AFTER,
    "half open": Loss.SILENT,
    "reply late": Loss.LATE,
}

#: So much more often a commit is met, because most depends on it.
_COMMITS_MORE = 5


class Faults:
    """Strikes a scenario with the kinds of faults that its seed has drawn, until the calm begins."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._world = scenario.world
        self._random = scenario.world.random
        self._story = scenario.story
        self.is_over = False
        self._losses: list[tuple[Loss, float]] = []

    def begin(self) -> None:
        """Let faults happen from now on."""
        for kind in self._scenario.setup.faults:
            if kind in LOSSES:
                self._losses.append((LOSSES[kind], self._random.choice((0.003, 0.02, 0.1))))
            else:
                self._strike_again(STRIKES[kind])
        self._scenario.network.draw_loss = self._draw_loss

    def end(self) -> None:
        """Let no more faults happen, and mend what is broken."""
        self.is_over = True
        for process in self._scenario.beats:
            process.clock_ahead = 0
            if process.is_frozen:
                process.thaw()

    def _strike_again(self, strike: Callable[[Faults], None]) -> None:
        """Strike now and then."""
        pause = self._random.expovariate(1 / 12.0)

        def call() -> None:
            if not self.is_over:
                strike(self)
                self._strike_again(strike)

        self._world.after(pause, call)

    def _draw_loss(self, process: Process, commands: list[list[bytes]]) -> Loss | None:
        if self.is_over:
            return None
        factor = _COMMITS_MORE if self._scenario.has_commit(commands) else 1
        for loss, probability in self._losses:
            if self._random.random() < probability * factor:
                self._story.counts[loss.value] += 1
                self._story.tell(f"fault: {loss.value} ({process.name})")
                return loss
        return None

    def _note(self, kind: str, text: str = "") -> None:
        self._story.counts[kind] += 1
        self._story.tell(f"fault: {kind} {text}".rstrip())

    def _any_beat(self) -> Process:
        return self._random.choice(self._scenario.beats)

    # -- strikes -----------------------------------------------------------------------------------

    def cut(self) -> None:
        """All connections break."""
        self._note("connections cut")
        self._scenario.network.cut_all()

    def kill(self) -> None:
        """A beat is killed, and another one starts some seconds later."""
        beat = self._any_beat()
        self._note("beat killed", beat.name)
        beat.kill()
        self._scenario.beats.remove(beat)
        self._world.after(self._random.uniform(0.0, 10.0), self._scenario.start_beat)
        if not self._scenario.beats:
            self._scenario.start_beat()

    def kill_worker(self) -> None:
        """A worker is killed, and another one starts."""
        worker = self._random.choice(self._scenario.workers)
        self._note("worker killed", worker.name)
        worker.kill()
        self._scenario.workers.remove(worker)
        self._scenario.start_worker()

    def stop(self) -> None:
        """A beat is told to stop, and another one starts some seconds later."""
        beat = self._any_beat()
        if beat.is_frozen:
            return
        self._note("beat stopped", beat.name)
        self._scenario.stop_beat(beat)
        self._world.after(self._random.uniform(0.0, 5.0), self._scenario.start_beat)
        if not self._scenario.beats:
            self._scenario.start_beat()

    def freeze(self) -> None:
        """A beat stops, as its machine may, and goes on later."""
        beat = self._any_beat()
        seconds = self._random.choice((0.5, 3.0, 12.0, 40.0))
        if beat.is_frozen:
            return
        self._note("beat frozen", f"{beat.name} for {seconds} s")
        beat.freeze()

        def thaw() -> None:
            if beat.is_frozen and not beat.is_dead:
                self._story.tell(f"{beat.name} goes on")
                beat.thaw()

        self._world.after(seconds, thaw)

    def set_clock(self) -> None:
        """Somebody sets the clock of a beat by a second."""
        self._set_clock("clock set", self._random.choice((-1.0, 1.0, 0.0)))

    def leap(self) -> None:
        """Somebody sets the clock of a beat by many seconds."""
        self._set_clock("clock leaps", self._random.choice((-600.0, -30.0, 30.0, 600.0, 0.0)))

    def _set_clock(self, kind: str, seconds: float) -> None:
        beat = self._any_beat()
        self._note(kind, f"{beat.name} is {seconds:+} s ahead")
        beat.clock_ahead = int(seconds * MICROS)

    def restart_server(self) -> None:
        """The server restarts with its data."""
        self._stop_server("server restarted")

    def empty_server(self) -> None:
        """The server restarts without its data."""
        if self._scenario.network.is_up:
            self._stop_server("server emptied")
            self._scenario.forget_everything()

    def refuse_writes(self) -> None:
        """The server takes no writes for some seconds."""
        database = self._scenario.server.database
        if database.refusal is not None:
            return
        database.refusal = self._random.choice(list(Refusal))
        seconds = self._random.choice((0.1, 2.0, 10.0))
        self._note("writes refused", f"for {seconds} s: {database.refusal.name}")

        def allow() -> None:
            database.refusal = None
            self._story.tell("the server takes writes again")

        self._world.after(seconds, allow)

    def fail_over(self) -> None:
        """A replica takes over that lacks the writes of the last moments."""
        since, database = self._story.now, self._scenario.server.database
        copied, losses = database.copy(), self._scenario.losses_of_data

        def take_over() -> None:
            if self._scenario.losses_of_data != losses:
                return  # The server has lost its data meanwhile, and so has the replica.
            self._note("failed over", f"to a replica of {self._story.now - since} ms ago")
            database.restore(copied)
            self._scenario.network.cut_all()
            self._scenario.forget_since(since)

        self._world.after(self._random.uniform(0.01, 1.5), take_over)

    def _stop_server(self, kind: str) -> None:
        network = self._scenario.network
        if not network.is_up:
            return
        seconds = self._random.choice((0.0, 1.0, 6.0, 20.0))
        self._note(kind, f"and away for {seconds} s")
        network.is_up = False
        network.cut_all()
        self._scenario.server.restart(with_data=kind != "server emptied")

        def start() -> None:
            network.is_up = True
            self._story.tell("the server is back")

        self._world.after(seconds, start)


STRIKES: dict[str, Callable[[Faults], None]] = {
    "cut": Faults.cut,
    "kill": Faults.kill,
    "kill worker": Faults.kill_worker,
    "stop": Faults.stop,
    "freeze": Faults.freeze,
    "clock": Faults.set_clock,
    "leap": Faults.leap,
    "restart": Faults.restart_server,
    "empty": Faults.empty_server,
    "refuse writes": Faults.refuse_writes,
    "fail over": Faults.fail_over,
}

#: All kinds of faults.
KINDS = [*LOSSES, *STRIKES]
