"""The faults that a seed may draw. Each kind strikes again and again, and each strike draws for itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.network import Loss
from tests.simulation.values import Refusal
from tests.simulation.world import MICROS, Process

if TYPE_CHECKING:
    from tests.simulation.scenario import Scenario

#: Faults that meet single requests.
LOSSES = {
    "request lost": Loss.BEFORE,
    "reply lost": Loss.AFTER,
    "half open": Loss.HALF_OPEN,
    "reply late": Loss.LATE_REPLY,
    "request late": Loss.LATE_REQUEST,
}

#: How likely they meet a request; a seed draws one of these for each kind.
_PROBABILITIES = (0.003, 0.02, 0.1)

#: So much more often a commit is met, because most depends on it.
_COMMITS_MORE = 5

#: How likely a beat that is isolated is one that has just sent a commit.
_STRANDS_COMMIT = 0.5

#: Seconds by which the replies of a slow network are late at most: less than a command waits for.
_SLOWEST = 3.0
#: The share of messages that a fault of the broker meets.
_MESSAGES_MET = 0.2

#: Seconds from the beginning of a task to the death of its worker, at most: a strike draws one of these.
_UNTIL_DEATH = (0.02, 0.5, 2.0)

#: Seconds from one strike of a kind to the next, on average.
_PAUSE = 6.0


class Faults:
    """Strikes a scenario with the kinds of faults that its seed has drawn, until the calm begins."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._world = scenario.world
        self._story = scenario.story
        self.is_over = False
        self._losses: list[tuple[str, float]] = []
        self._loss_random = scenario.world.random_for("losses")
        #: Cuts off the beat that sends the next commit, if a strike waits for one.
        self._strand: Callable[[Process], None] | None = None
        self._numbers: Counter[str] = Counter()

    def begin(self) -> None:
        """Let faults happen from now on."""
        for kind in self._scenario.setup.faults:
            if kind in LOSSES:
                random = self._world.random_for(f"probability of {kind}")
                self._losses.append((kind, random.choice(_PROBABILITIES)))
            elif kind == "deliver twice":
                self._scenario.broker.draw_second_delivery = self._drawing(kind, "a message is delivered twice")
            elif kind == "lose acknowledgements":
                self._scenario.broker.draw_lost_ack = self._drawing(kind, "an acknowledgement is lost")
            elif kind in STRIKES:
                self._strike_again(kind)
        for network in self._scenario.networks:
            network.draw_loss = self._draw_loss

    def end(self) -> None:
        """Let no more faults happen, and mend what is broken."""
        self.is_over = True
        self._scenario.broker.network.slowness = 0.0
        self._scenario.broker.server.refuses = lambda: False
        for process in self._world.processes:
            process.clock_ahead = 0
            if process.is_frozen:
                process.thaw()

    def _next_name(self, kind: str) -> str:
        self._numbers[kind] += 1
        return f"{kind} {self._numbers[kind]}"

    def _strike_again(self, kind: str) -> None:
        """Strike now and then. Each strike has a source of its own, so it stays what it is if others are left out."""
        name = self._next_name(kind)
        random = self._world.random_for(name)

        def call() -> None:
            if self.is_over and kind != "deaf":
                return  # A beat that is deaf may be no later in the calm than the audit allows.
            if self._story.happens(name):
                if kind not in UNDISTURBING:
                    self._scenario.disturb()
                STRIKES[kind](self, random, name)
            self._strike_again(kind)

        self._world.after(random.expovariate(1 / _PAUSE), call)

    def _draw_loss(self, process: Process, commands: list[list[bytes]]) -> Loss | None:
        if self.is_over:
            return None
        has_commit = self._scenario.has_commit(commands)
        if has_commit and self._strand is not None:
            strand, self._strand = self._strand, None
            strand(process)
            return Loss.AT_NEXT_TERM
        factor = _COMMITS_MORE if has_commit else 1
        for kind, probability in self._losses:
            if self._loss_random.random() < probability * factor:
                name = self._next_name(kind)
                if not self._story.happens(name):
                    return None
                self._scenario.note_loss(process)
                self._note(name, f"{LOSSES[kind].value} ({process.name})")
                return LOSSES[kind]
        return None

    def _drawing(self, kind: str, text: str) -> Callable[[], bool]:
        """Return a function that says of one message whether a fault meets it."""
        random = self._world.random_for(kind)

        def draw() -> bool:
            if self.is_over or random.random() >= _MESSAGES_MET:
                return False
            name = self._next_name(kind)
            if not self._story.happens(name):
                return False
            self._note(name, text)
            return True

        return draw

    def _note(self, name: str, text: str) -> None:
        self._story.counts[f"fault: {name.rstrip(' 0123456789')}"] += 1
        self._story.tell(f"FAULT {name}: {text}")

    def _any_beat(self, random: Random) -> Process:
        return random.choice(self._scenario.beats)

    # -- strikes -----------------------------------------------------------------------------------

    def cut(self, random: Random, name: str) -> None:
        """All connections break."""
        del random
        self._note(name, "all connections break")
        for network in self._scenario.networks:
            network.cut_all()
        for beat in self._scenario.beats:
            self._scenario.note_loss(beat)

    def deafen(self, random: Random, name: str) -> None:
        """A subscription becomes half open: its beat hears nothing more, and does not notice."""
        del random
        subscribed = [socket for socket in self._scenario.network.sockets if socket.channels and not socket.is_gone]
        for socket in subscribed:
            socket.is_half_open = True
        self._note(name, f"{len(subscribed)} subscriptions hear nothing any more")

    def kill(self, random: Random, name: str) -> None:
        """A beat is killed, and another one starts some seconds later."""
        beat = self._any_beat(random)
        self._note(name, f"{beat.name} is killed")
        beat.kill()
        self._scenario.beats.remove(beat)
        self._replace_beat(random)

    def stop(self, random: Random, name: str) -> None:
        """A beat is told to stop, and another one starts some seconds later."""
        beat = self._any_beat(random)
        self._note(name, f"{beat.name} is told to stop")
        self._scenario.stop_beat(beat)
        self._replace_beat(random)

    def _replace_beat(self, random: Random) -> None:
        self._world.after(random.uniform(0.0, 10.0), self._scenario.start_beat)
        if not self._scenario.beats:
            self._scenario.start_beat()

    def kill_holder(self, random: Random, name: str) -> None:
        """A process that holds locks is killed, and another one starts."""
        if not self._scenario.holders:
            return
        holder = random.choice(self._scenario.holders)
        self._note(name, f"{holder.name} is killed")
        holder.kill()
        self._scenario.holders.remove(holder)
        self._scenario.start_holder()

    def freeze(self, random: Random, name: str) -> None:
        """A beat does nothing for some seconds, and then goes on."""
        beat = self._any_beat(random)
        if beat.is_frozen:
            return
        seconds = random.choice((0.5, 3.0, 8.0, 20.0))
        self._note(name, f"{beat.name} does nothing for {seconds} s")
        self._freeze(beat, seconds)

    def _freeze(self, process: Process, seconds: float) -> None:
        process.freeze()

        def thaw() -> None:
            if process.is_frozen and not process.is_dead:
                self._story.tell(f"{process.name} goes on")
                self._scenario.disturb()
                process.thaw()

        self._world.after(seconds, thaw)

    def isolate(self, random: Random, name: str) -> None:
        """A beat is cut off for some seconds: after its network was slow, or while its commit is on its way."""
        if random.random() < _STRANDS_COMMIT:
            self._strand_commit(random, name)
        else:
            self._slow_down(random, name)

    def _strand_commit(self, random: Random, name: str) -> None:
        """Cut off the beat that sends the next commit, which arrives when the next term begins."""
        seconds = random.choice((3.0, 8.0, 20.0))

        def strand(beat: Process) -> None:
            began = self._story.now
            self._scenario.disturb()
            self._note(name, f"{beat.name} is cut off for {seconds} s, and its commit arrives in the next term")
            self._world.soon(lambda: self._cut_off(beat))
            self._world.after(seconds, lambda: self._reconnect(beat, began))

        self._strand = strand

    def _slow_down(self, random: Random, name: str) -> None:
        """Make the network of a beat slow, and then cut it off."""
        beat = self._any_beat(random)
        if beat.slowness or beat.is_cut_off:
            return
        lease = self._scenario.setup.lease
        slowness = min(lease * random.uniform(0.0, 0.3), _SLOWEST)
        slow_for = lease * random.uniform(0.5, 1.5)
        began = self._story.now
        seconds = random.choice((3.0, 8.0, 20.0))
        self._note(
            name, f"{beat.name} hears all {slowness:.2f} s late, and after {slow_for:.1f} s nothing for {seconds} s"
        )
        beat.slowness = slowness
        beat.jitter = lease

        def cut_off() -> None:
            self._scenario.disturb()
            self._story.tell(f"{beat.name} is cut off")
            self._cut_off(beat)

        self._world.after(slow_for, cut_off)
        self._world.after(slow_for + seconds, lambda: self._reconnect(beat, began))

    def _cut_off(self, beat: Process) -> None:
        """Let nothing through to a beat or from it."""
        beat.is_cut_off = True
        for network in self._scenario.networks:
            network.make_half_open(beat)

    def _reconnect(self, beat: Process, began: int) -> None:
        """Let a beat connect again that was isolated since an instant, in epoch ms."""
        self._scenario.disturb()
        self._story.tell(f"{beat.name} can connect again")
        beat.is_cut_off = False
        beat.slowness = 0.0
        beat.jitter = 0.0
        # It may have begun near the end of the storm.
        ended = self._story.now + self._scenario.setup.recovery_ms
        self._story.record(kind="fault", began=began, ended=ended)

    def kill_worker(self, random: Random, name: str) -> None:
        """A worker is killed some moments after the next task begins: all of it, its main process, or a child.

        The moment may lie in the body, between its end and the record of it, or before the message is acknowledged.
        """
        seconds = random.random() * random.choice(_UNTIL_DEATH)

        def kill_soon(process: Process) -> None:
            self._world.after(seconds, lambda: self._kill_around(process, random, name))

        self._scenario.bodies.at_next_begin = kill_soon

    def _kill_around(self, process: Process, random: Random, name: str) -> None:
        worker = next((worker for worker in self._scenario.workers if process in worker.processes), None)
        if self.is_over or worker is None:
            return
        self._scenario.disturb()
        how = random.choice(("child", "main process", "all")) if worker.forks else "all"
        self._note(name, f"{worker.process.name} is killed: {how}")
        if how == "child":
            worker.pool.kill_child(process)
            return
        if how == "main process":
            worker.process.kill()
        else:
            worker.kill()
        self._scenario.workers.remove(worker)
        self._scenario.start_worker()

    def freeze_worker(self, random: Random, name: str) -> None:
        """A worker with all its children does nothing for some seconds, and then goes on."""
        worker = random.choice(self._scenario.workers)
        seconds = random.choice((0.5, 3.0, 12.0))
        self._note(name, f"{worker.process.name} does nothing for {seconds} s")
        for process in worker.processes:
            self._freeze(process, seconds)

    def put_broker_away(self, random: Random, name: str) -> None:
        """The broker answers nobody for some seconds."""
        network = self._scenario.broker.network
        seconds = random.choice((0.5, 3.0, 12.0))
        self._note(name, f"the broker is away for {seconds} s")
        network.is_up = False
        network.cut_all()

        def start() -> None:
            network.is_up = True
            self._scenario.disturb()
            self._story.tell("the broker is back")

        self._world.after(seconds, start)

    def slow_broker(self, random: Random, name: str) -> None:
        """The broker takes longer for some seconds."""
        network = self._scenario.broker.network
        network.slowness = random.choice((0.05, 0.5, 2.5))
        self._note(name, f"the broker takes {network.slowness} s longer")

        def hurry() -> None:
            network.slowness = 0.0
            self._scenario.disturb()

        self._world.after(random.choice((3.0, 12.0)), hurry)

    def refuse_messages(self, random: Random, name: str) -> None:
        """The broker refuses some messages for some seconds."""
        server = self._scenario.broker.server
        server.refuses = self._drawing(f"message of {name}", "the broker refuses a message")
        self._note(name, "the broker refuses some messages")

        def take_all() -> None:
            server.refuses = lambda: False
            self._scenario.disturb()

        self._world.after(random.choice((3.0, 12.0)), take_all)

    def set_clock(self, random: Random, name: str) -> None:
        """Somebody sets the clock of a beat by a second."""
        self._set_clock(random, name, random.choice((-1.0, 1.0, 0.0)))

    def leap(self, random: Random, name: str) -> None:
        """Somebody sets the clock of a beat by many seconds."""
        self._set_clock(random, name, random.choice((-600.0, -30.0, 30.0, 600.0, 0.0)))

    def _set_clock(self, random: Random, name: str, seconds: float) -> None:
        beat = self._any_beat(random)
        self._note(name, f"the clock of {beat.name} is {seconds:+} s ahead")
        beat.clock_ahead = int(seconds * MICROS)

    def restart_server(self, random: Random, name: str) -> None:
        """The server restarts with its data."""
        if self._scenario.network.is_up:
            self._stop_server(random, name, with_data=True)

    def empty_server(self, random: Random, name: str) -> None:
        """The server restarts without its data."""
        if self._scenario.network.is_up:
            self._stop_server(random, name, with_data=False)
            self._scenario.forget_everything()

    def refuse_writes(self, random: Random, name: str) -> None:
        """The server takes no writes for some seconds."""
        database = self._scenario.server.database
        if database.refusal is not None:
            return
        refusal = random.choice(list(Refusal))
        seconds = random.choice((0.1, 2.0, 10.0))
        self._note(name, f"the server takes no writes for {seconds} s: {refusal.name}")
        database.refusal = refusal

        def allow() -> None:
            database.refusal = None
            self._scenario.disturb()
            self._story.tell("the server takes writes again")

        self._world.after(seconds, allow)

    def fail_over(self, random: Random, name: str) -> None:
        """A replica takes over that lacks the writes of the last moments."""
        since, database = self._story.now, self._scenario.server.database
        copied, losses = database.copy(), self._scenario.losses_of_data

        def take_over() -> None:
            if self._scenario.losses_of_data != losses:
                return  # The server has lost its data meanwhile, and so has the replica.
            self._note(name, f"a replica takes over, as of {self._story.now - since} ms ago")
            self._scenario.disturb()
            database.restore(copied)
            self._scenario.network.cut_all()
            self._scenario.forget_since(since)

        self._world.after(random.uniform(0.01, 1.5), take_over)

    def _stop_server(self, random: Random, name: str, *, with_data: bool) -> None:
        network = self._scenario.network
        seconds = random.choice((0.0, 1.0, 6.0, 20.0))
        how = "with its data" if with_data else "without its data"
        self._note(name, f"the server restarts {how}, and is away for {seconds} s")
        network.is_up = False
        network.cut_all()
        self._scenario.server.restart(with_data=with_data)

        def start() -> None:
            network.is_up = True
            self._scenario.disturb()
            self._story.tell("the server is back")

        self._world.after(seconds, start)


STRIKES: dict[str, Callable[[Faults, Random, str], None]] = {
    "cut": Faults.cut,
    "deaf": Faults.deafen,
    "kill": Faults.kill,
    "kill holder": Faults.kill_holder,
    "kill worker": Faults.kill_worker,
    "freeze worker": Faults.freeze_worker,
    "broker away": Faults.put_broker_away,
    "broker slow": Faults.slow_broker,
    "broker refuses": Faults.refuse_messages,
    "stop": Faults.stop,
    "freeze": Faults.freeze,
    "isolate": Faults.isolate,
    "clock": Faults.set_clock,
    "leap": Faults.leap,
    "restart": Faults.restart_server,
    "empty": Faults.empty_server,
    "refuse writes": Faults.refuse_writes,
    "fail over": Faults.fail_over,
}

#: Strikes that cost a beat no more than a lost request, so it is judged meanwhile whether it goes silent.
UNDISTURBING = ("cut", "deaf", "kill holder", "kill worker", "freeze worker")

#: Faults that meet single messages.
MESSAGE_FAULTS = ("deliver twice", "lose acknowledgements")

#: A fault of seeds that last for days: nothing runs for hours or days, and runs are missed meanwhile.
SLEEP = "sleep"

#: All kinds of faults.
KINDS = (*LOSSES, *STRIKES, *MESSAGE_FAULTS, SLEEP)
