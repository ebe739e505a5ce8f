"""Random arguments of scripts, one method for each word that contracts use.

Some follow what the model server holds, so that scripts get beyond their first check.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any

import msgspec

from redbeat_lite.pipeline.definition import Ref
from redbeat_lite.store.keys import Keys
from redbeat_lite.store.transact import _Numbers, _parse
from tests.simulation.server import ModelServer

KEYS = Keys.of("t")

NAMES = ["a", "b", "c", "ä", "n" * 810]
OWNERS = ["host:1:aa:app", "host:2:bb:app", ""]
#: The first two are rounds of one step of a pipeline.
TASKS = [*(Ref("run", 0, round).task_id for round in range(2)), "task-3"]
STATES = ["1|g1|x", "2|g1|y\n1-0|a", "1|g2|", "garbage", "z" * 64, "p" * 60]

#: Keys of the statements below, in the order of the contract.
TARGETS = "state entries due quarantine meta leader calendars wake"

#: Statements of transact, each with the words for its values.
STATEMENTS = {
    "IF HGET leader token IS $1\nIF HGET leader term IS $2": "token term",
    "IF HGET meta format IS 1\nIF HGET entries NONE IS NONE": "",
    "IF HGET state $1 IS $2\nHSET state $1 $3\nZADD due $4 $1\nHSET entries $1 $5\nCHANGED $1": (
        "name before after score definition"
    ),
    "IF HGET state $1 IS $2\nHSET state $1 $3\nZADD due $4 $1\nHDEL quarantine $1\nCHANGED $1": (
        "name before after score"
    ),
    "IF HGET state $1 IS $2\nHDEL entries $1\nHDEL state $1\nZREM due $1\nNAMED $1": "name before",
    "IF HGET entries $1 IS $2\nIF HGET state $1 IS $3\nHSET quarantine $1 $4\nHDEL entries $1\nCHANGED $1": (
        "name defined before json"
    ),
    "IF HGET calendars $1 IS $2\nHSET calendars $1 $3": "name calendar state",
    "IF HGET meta freeze IS $1\nHSET meta freeze $2\nPUBLISH wake freeze": "frozen freeze",
    "HSET meta $1 $2": "field flag",
    "IF ZSCORE due $1 IS $2\nZREM due $1": "name score",
    "": "",
}


class Arguments:
    """Draws arguments; those of one entry follow its ``name``."""

    def __init__(self, random: Random, server: ModelServer) -> None:
        self._random = random
        self._server = server
        self._entry = ""
        self._leases = [""]

    def change_round(self) -> None:
        """Draw whether leases are so short that they run out between two calls."""
        self._leases = self._random.choice((["3", "40"], ["1000", "30000"], ["30000", "600000"]))

    def _stored(self, key: str, field: str) -> str | None:
        found = self._server.database.find(key.encode())
        value = found.get(field.encode()) if isinstance(found, dict) else None
        return None if value is None else value.decode("latin-1")

    def _choice(self, *values: str) -> str:
        return self._random.choice(values)

    def _mostly(self, value: str | None, *others: str) -> str:
        if value is not None and self._random.random() < 0.85:
            return value
        return self._random.choice(others)

    def token(self) -> str:
        return self._mostly(self._stored(KEYS.leader, "token"), *OWNERS)

    def holder(self) -> str:
        """A task's token: mostly that of one and the same copy."""
        return self._mostly(OWNERS[0], *OWNERS)

    def suspect(self) -> str:
        return self._choice("", self.holder())

    def anybody(self) -> str:
        return self._choice("", self.token())

    def term(self) -> str:
        return self._mostly(self._stored(KEYS.leader, "term"), "1", "2", "0")

    def lease(self) -> str:
        return self._random.choice(self._leases)

    def hold(self) -> str:
        return self._choice("0", "5", "60000")

    def small(self) -> str:
        return self._choice("0", "1", "2", "3", "10", "1000")

    def few(self) -> str:
        return self._choice("0", "1", "2")

    def one(self) -> str:
        return "1"

    def flag(self) -> str:
        return self._choice("0", "1")

    def nothing(self) -> str:
        return ""

    def format(self) -> str:
        return self._mostly("2", "1", "3")

    def word(self) -> str:
        return self._choice("host", "worker@x", "a b", "ü", "")

    def channel(self) -> str:
        return KEYS.wake

    def change(self) -> str:
        kinds = ("paused", "resumed", "edited", "term begun")
        return json.dumps([self._random.choice(kinds), "who", "api", ""])

    def fields(self) -> str:
        return self._choice("[]", '["schedule"]')

    def field(self) -> str:
        return self._choice("mark", "zones", "synced", "feed", "format")

    def json(self) -> str:
        return self._choice("{}", '{"a":1}', '{"error":"x","n":[1,2.5,null,true]}')

    def now(self) -> str:
        return str(self._server.database.now + self._random.choice((-5000, 0, 0, 1, 5000)))

    def instant(self) -> str:
        return self._choice("0", "0", str(self._server.database.now + 60_000), self.now())

    def until(self) -> str:
        return str(self._server.database.now + self._random.choice((-1000, 60_000, 60_000, 60_000)))

    def name(self) -> str:
        self._entry = self._random.choice(NAMES)
        return self._entry

    def state(self) -> str:
        return self._choice("", *STATES)

    def before(self) -> str:
        return self._mostly(self._stored(KEYS.state, self._entry) or "", *STATES)

    def after(self) -> str:
        return self._mostly(self._random.choice(STATES), "")

    def definition(self) -> str:
        return self._choice("", '{"task":"t"}', '{"task":"u","args":[1]}', "d" * 64)

    def score(self) -> str:
        return self._choice(self.now(), "+inf", "1.5")

    def transaction(self) -> list[bytes]:
        """The arguments of a call of transact, some of whose steps have a line."""
        return self._transaction(lines=2)

    def unrecorded(self) -> list[bytes]:
        return self._transaction(lines=0)

    def _transaction(self, lines: int) -> list[bytes]:
        statements = [*STATEMENTS]
        guards = [statement for statement in statements[:2] if self._random.random() < 0.3]
        chosen = guards + self._random.choices(statements[2:], k=self._random.randint(1, 4))
        places = _Numbers({name: number for number, name in enumerate(TARGETS.split(), 1)})
        parsed = [_parse(statement, places) for statement in statements]
        steps = []
        for statement in chosen:
            line = 0 if statement in guards else self._random.randint(0, lines)
            values = [getattr(self, word)() for word in STATEMENTS[statement].split()]
            steps.append([statements.index(statement) + 1, line, *values])
        packed = (parsed, [(self.change(), self.fields()) for _ in range(lines)], steps)
        return [b"%d" % len(guards), msgspec.msgpack.encode(packed)]

    def defined(self) -> str:
        return self._stored(KEYS.entries, self._entry) or ""

    def calendar(self) -> str:
        return self._stored(KEYS.calendars, self._entry) or ""

    def frozen(self) -> str:
        return self._stored(KEYS.meta, "freeze") or ""

    def freeze(self) -> str:
        return self._mostly(f"{self.now()}|frozen", "", "|", "0|", "frozen")

    def uuid(self) -> str:
        return f"{self._random.getrandbits(64):016x}"

    def advances(self) -> bytes:
        """Entries of a commit."""
        return msgspec.msgpack.encode([self._advance() for _ in range(self._random.randint(0, 2))])

    def _advance(self) -> list[Any]:
        name = self.name()
        state = self._stored(KEYS.state, name) or ""
        guard = state[: self._random.choice((1, 3, 64))]
        run = f"{self.now()}|{name}"
        first, length = self._random.randint(0, 9), self._random.randint(1, 9)
        row = f"2 {self.lease()} {self._random.randint(0, 9)} |m|{first:x}|{length:x}|2|"
        deadlines = [int(self.now()), f"start|{run}", 999, f"finish|{run}", 5, f"success||{name}"]
        commands = [
            [*self._random.choice((("lpush", 1), ("lpush", 1), ("publish", "c"))), self.json()],
            ["pexpire", 1, int(self.lease())],
            ["range", 2, row],
            ["deadlines", 3, deadlines[: self._random.choice((2, 4, 6))]],
            ["recorded", 2, run],
            ["if", 4, self._planned_from()],
            ["claim", [5, 6, 7, 8], self._claim()],
            ["claimed", 5, ""],
        ]
        kept = [command for command in commands if self._random.random() < 0.7]
        return [name, guard, self.after(), self._random.choice((int(self.now()), "+inf")), kept]

    def _claim(self) -> dict[str, Any]:
        return {
            "key": self.key(),
            "task_id": self.task(),
            "lease_ms": int(self.lease()),
            "delay_ms": int(self.small()),
            "holder": self.word(),
            "queue": self.word(),
            "life_ms": int(self.lease()),
            "takeover_at": int(self.instant()),
        }

    def _planned_from(self) -> str:
        """Version and generation of an entry, and its name, which may be another one than that of the advance."""
        name = self._random.choice(NAMES)
        version, generation, *_ = f"{self._stored(KEYS.state, name) or ''}||".split("|")
        return self._choice(f"{version}|{generation}|{name}", f"{version}|other|{name}")

    def kind(self) -> str:
        return self._choice("hash", "zset", "stream", "string")

    def newest(self) -> str:
        return self._choice("+", f"({self.now()}-0", self.now())

    def oldest(self) -> str:
        return self._choice("-", self.now())

    def task(self) -> str:
        return self._mostly(TASKS[0], *TASKS)

    def key(self) -> str:
        return self._choice("key-a", "key-b")

    def attempt(self) -> str:
        return self._choice("0", "0", "1", "2")

    def message(self) -> str:
        return self._choice("", "message", "message")

    def mode(self) -> str:
        return self._choice("skip", "wait", "wait", "raise", "try")

    def done(self) -> str:
        return self._choice("done", "dead")

    def fate(self) -> str:
        nominal = self._server.database.now + self._random.choice((-9000, -100, 0, 100))
        fate = [
            self._random.choice("sfylrxe"),
            self._random.choice(("", 0, 50)),
            self._random.choice(("", 20)),
            self._random.choice(NAMES),
            nominal,
            self._random.choice(TASKS),
            self._random.randint(0, 2),
            self._random.choice((1, 2, 10)),
            self._random.random() < 0.5,
            int(self.lease()),
            "worker",
            self._random.choice(("", "Error: x")),
        ]
        return json.dumps(fate)

    def step(self) -> str:
        return self._choice("0", "1", "2")

    def fields_of_step(self) -> str:
        waiting = {"state": "WAITING", "attempt": int(self.attempt()), "tries": 1, "due": int(self.now())}
        return json.dumps(self._random.choice(({}, {"percent": 12.5, "note": self.word()}, waiting)))

    def stage(self) -> str:
        return self._choice("0", "0", "1")

    def round(self) -> str:
        return self._choice("0", "0", "0", "1")

    def round_attempt(self) -> str:
        return self._choice("0.0", "0.0", "1.0", "0.1")

    def ends(self) -> str:
        return self._choice("[1]", "[2,3]", "[1,2,3]", "[3]")

    def outcome(self) -> str:
        return self._choice("SUCCEEDED", "SUCCEEDED", "FAILED", "REVOKED")

    def reason(self) -> str:
        return self._choice("", "", "left out")
