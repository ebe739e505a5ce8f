"""Random calls of every script: its KEYS and ARGV by its contract, with odd values among them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from tests.simulation.arguments import KEYS, TARGETS, Arguments
from tests.simulation.server import ModelServer

ROOT = KEYS.prefix

#: What the words of the contracts below stand for that are keys of the schedule.
SCHEDULE = {
    "leader": KEYS.leader,
    "meta": KEYS.meta,
    "beats": KEYS.beats,
    "changes": KEYS.changes,
    "due": KEYS.due,
    "entries": KEYS.entries,
    "state": KEYS.state,
    "quarantine": KEYS.quarantine,
    "calendars": KEYS.calendars,
    "backfills": KEYS.of_backfills.due,
    "wake": KEYS.wake,
}

#: Other keys, of each several.
SEVERAL = [
    "reply",
    "lock",
    "waiters",
    "parked",
    "last",
    "rows",
    "queue",
    "guard",
    "run",
    "steps",
    "results",
    "gone",
    "line",
]
SINGLE = [
    "index",
    "fence",
    "guards",
    "feed",
    "deadlines",
    "incidents",
    "closed",
    "failures",
    "reports",
    "runs",
]

PIPELINE = "run steps results gone"
NO_LOCK = "- - - - -"


class Call(NamedTuple):
    """A script with its KEYS and ARGV."""

    script: str
    keys: list[str]
    args: list[bytes]


@dataclass
class Contract:
    """The arguments of one script, as words that :class:`Calls` has a method or a key for.

    Parameters:
        keys: of all calls; ``-`` for a key that is left out.
        args: of all calls.
        each_key: added for each item.
        each_arg: added for each item.
        items: at most so many items.
        least: at least so many items.
    """

    keys: str
    args: str = ""
    each_key: str = ""
    each_arg: str = ""
    items: int = 0
    least: int = 0


LOCK = "lock waiters parked index fence"

CONTRACTS: dict[str, list[Contract]] = {
    "leader/acquire": [Contract("leader meta beats changes", "token lease word small format change")],
    "leader/renew": [
        Contract("leader due entries state meta beats backfills", "token term lease small word small json now")
    ],
    "leader/resign": [Contract("leader beats meta", "token channel")],
    "schedule/changes": [Contract("changes", "newest oldest small small name change")],
    "schedule/commit": [
        Contract(
            "leader due entries state meta queue rows deadlines state lock waiters index fence",
            "token term uuid now advances",
        )
    ],
    "schedule/counts": [Contract("entries state due")],
    "schedule/peek": [Contract("leader due entries state meta backfills", "token term now small")],
    "schedule/read": [
        Contract("entries state due", "nothing nothing", each_arg="name", items=4),
        Contract("entries state due", "small small"),
    ],
    "schedule/transact": [
        Contract(f"reply changes state due {TARGETS}", "channel transaction"),
        Contract(f"reply - - - {TARGETS}", "channel unrecorded"),
    ],
    "schedule/status": [Contract("leader beats meta due entries quarantine reports runs", "small")],
    "runs/record": [Contract("feed deadlines incidents rows", "fate")],
    "runs/rows": [Contract("rows rows", "small")],
    "guard/discard": [Contract("guard guards", "task attempt")],
    "guard/wake": [Contract("guard guards", "task lease")],
    "once/begin": [
        Contract(
            f"guard guards {NO_LOCK}",
            "holder task attempt lease instant lease message key mode word few instant",
        ),
        Contract(
            f"guard guards {LOCK}",
            "holder task attempt lease instant lease message key mode word few instant",
        ),
    ],
    "once/end": [
        Contract("guard guards - - -", "holder task done instant lease key hold attempt lease"),
        Contract("guard guards lock waiters index", "holder task done instant lease key hold attempt lease"),
    ],
    "once/extend": [Contract("index", each_key="lock", each_arg="key task flag", items=2)],
    "once/leave": [Contract("index lock waiters parked", "key task attempt")],
    "once/renew": [
        Contract("guard - -", "holder task attempt lease flag key small word"),
        Contract("guard lock index", "holder task attempt lease flag key small word"),
    ],
    "once/take": [
        Contract(
            "index fence lock waiters",
            "key task lease small word word lease instant",
        )
    ],
    "once/taken": [Contract("index", each_key="lock waiters", each_arg="key task", items=2)],
    "once/wake": [Contract("lock waiters parked index", "key lease")],
    "pipeline/begin": [Contract(PIPELINE, "step round attempt holder flag word lease")],
    "pipeline/cancel": [Contract(PIPELINE, "reason flag")],
    "pipeline/change": [
        Contract("steps", "step round attempt suspect fields_of_step nothing"),
        Contract("steps", "step round attempt suspect fields_of_step lease"),
    ],
    "pipeline/check": [Contract(PIPELINE, "nothing"), Contract(PIPELINE, "stage")],
    "pipeline/complete": [Contract(PIPELINE, "step round attempt holder outcome json")],
    "pipeline/lost": [Contract("run steps", "step round suspect instant lease")],
    "pipeline/resume": [Contract(PIPELINE, "small until", each_arg="step", items=2)],
    "pipeline/start": [Contract(PIPELINE, "json ends json lease flag few instant name attempt flag until")],
    "pipeline/turn": [Contract("line", "task task few lease"), Contract("line", "nothing task few lease")],
}


#: Arguments that no contract allows.
ODD = ["", "x", "-1", "0", "1e400", "[", "nan", "9" * 20, "a|b|c", "\xff"]

#: Words that say how often a script repeats something: a huge number would keep both servers busy for ever.
REPETITIONS = {"ends"}
HUGE = {"1e400", "9" * 20}


#: Words for packed arguments. The server says of others where they cannot be read.
PACKED = {"advances", "transaction", "unrecorded"}


#: Scripts that work on the same keys. Calls of one theme come together, so that they meet what the others have left.
THEMES = {
    "schedule": ("leader/", "schedule/"),
    "runs": ("runs/", "leader/acquire", "schedule/commit", "schedule/transact"),
    "once": ("once/", "guard/"),
    "pipeline": ("pipeline/",),
    "all": ("",),
}

#: Scripts that come more often than others, because others need what they leave.
OFTEN = (
    "leader/acquire",
    "schedule/transact",
    "once/begin",
    "once/take",
    "pipeline/start",
    "pipeline/begin",
)

#: Scripts that come less often, because nothing is left after them.
SELDOM = ("leader/resign", "pipeline/cancel")


class Calls:
    """Draws calls, of one theme at a time."""

    def __init__(self, random: Random, server: ModelServer) -> None:
        self._random = random
        self._arguments = Arguments(random, server)
        self._oddity = 0.0
        self._scripts: list[str] = []
        self.change_round()

    def change_round(self) -> None:
        """Draw how odd the next calls are, and how long their leases."""
        self._oddity = self._random.choice((0.0, 0.0, 0.02))
        self._arguments.change_round()
        self.change_theme()

    def change_theme(self) -> None:
        """Draw which scripts come next, and how often."""
        beginnings = THEMES[self._random.choice(sorted(THEMES))]
        scripts = [script for script in sorted(CONTRACTS) if script.startswith(beginnings)]
        weights = {**dict.fromkeys(OFTEN, 12), **dict.fromkeys(SELDOM, 1)}
        self._scripts = [script for script in scripts for _ in range(weights.get(script, 4))]

    def draw(self) -> Call:
        """Draw a script, its KEYS and its ARGV."""
        script = self._random.choice(self._scripts)
        contract = self._random.choice(CONTRACTS[script])
        count = self._random.randint(contract.least, contract.items) if contract.items else 0
        words = contract.keys.split() + contract.each_key.split() * count
        keys: list[str] = []
        for word in words:
            keys.append(keys[0] if word == "-" else self._key(word))
        args = contract.args.split() + contract.each_arg.split() * count
        arguments: list[bytes] = []
        for word in args:
            arguments += self._argument(word)
        return Call(script, keys, arguments)

    def foreign(self) -> tuple[str, ...]:
        """Draw a command by which somebody else writes a key of ours, or removes one.

        It is an error where the key is of another type, on both servers.
        """
        key = self._key("anything")
        return self._random.choice(
            [
                ("DEL", key),
                ("SET", key, "foreign"),
                ("HSET", key, "a", "1"),
                ("ZADD", key, "1.5", "a"),
                ("RPUSH", key, "a"),
                ("SADD", key, "a"),
                ("XADD", key, "*", "a", "b"),
                ("PEXPIRE", key, "1"),
            ]
        )

    # -- keys --------------------------------------------------------------------------------------

    def _key(self, word: str) -> str:
        if word == "anything" or self._random.random() < self._oddity / 5:
            word = self._random.choice([*SCHEDULE, *SEVERAL, *SINGLE])
        if word in SCHEDULE:
            return SCHEDULE[word]
        if word in SINGLE:
            return f"{ROOT}:{word}"
        return f"{ROOT}:{word}:{self._random.choice('aaaab')}"

    def _argument(self, word: str) -> list[bytes]:
        if self._random.random() < self._oddity and word not in PACKED:
            odd = [value for value in ODD if word not in REPETITIONS or value not in HUGE]
            return [self._random.choice(odd).encode()]
        draw: Callable[[], bytes | str | list[bytes] | list[str]] = getattr(self._arguments, word)
        drawn = draw()
        values = drawn if isinstance(drawn, list) else [drawn]
        return [value if isinstance(value, bytes) else value.encode() for value in values]
