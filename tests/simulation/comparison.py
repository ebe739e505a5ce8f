"""Compares the model server with a real one: the same random calls, equal replies, equal keys."""

from __future__ import annotations

import json
import re
from collections import Counter
from random import Random
from typing import Any

import redis

from redbeat_lite.store.scripts import source
from tests.simulation.contracts import Call, Calls
from tests.simulation.real_server import Foreign, Outcome, RealServer, kept
from tests.simulation.server import ModelServer
from tests.simulation.values import CommandError

#: One call in so many is a command of somebody else on a key of ours; which of these, each round draws.
_FOREIGN_EVERY = (10, 100, 1_000_000)

#: Both servers begin anew after so many calls.
_ROUND = 400

#: Calls that are drawn and sent together, because a round trip takes longer than a call.
_GROUP = 20


class Difference(AssertionError):
    """A call has other results on the model than on the real server."""


class Comparison:
    """Sends the same calls to both servers.

    Parameters:
        client: of the real server, which is emptied again and again.
    """

    def __init__(self, client: redis.Redis, seed: int) -> None:
        self._seed = seed
        self._client = client
        self._now_us = 0
        self._real = RealServer(client)
        self._model = ModelServer(lambda: self._now_us)
        self._random = Random(seed)
        self._calls = Calls(self._random, self._model)
        self._foreign_every = _FOREIGN_EVERY[0]
        #: Calls by script and by whether they ended with an error.
        self.counts: Counter[tuple[str, bool]] = Counter()

    def run(self, calls: int) -> None:
        """Compare so many calls; raise Difference at the first that differs."""
        for number in range(0, calls, _GROUP):
            if number % _ROUND == 0:
                self._begin_anew()
            self._calls.change_theme()
            self._compare_group([self._draw() for _ in range(_GROUP)])

    def _begin_anew(self) -> None:
        self._calls.change_round()
        self._foreign_every = self._random.choice(_FOREIGN_EVERY)
        self._client.flushall()
        self._model.database.clear()
        self._now_us = self._real.run([("PING",)])[0].now_us

    def _draw(self) -> Call | Foreign:
        if self._random.randrange(self._foreign_every) == 0:
            return self._calls.foreign()
        return self._calls.draw()

    def _compare_group(self, group: list[Call | Foreign]) -> None:
        for call, outcome in zip(group, self._real.run(group), strict=True):
            self._now_us = outcome.now_us
            if isinstance(call, Call):
                self._compare(call, outcome)
            else:
                self._model.reply([word.encode() for word in call])

    def _compare(self, call: Call, outcome: Outcome) -> None:
        sha = self._model.scripting.load(source(call.script).encode())
        keys = [key.encode() for key in call.keys]
        reply = self._model.reply([b"EVALSHA", sha, b"%d" % len(keys), *keys, *call.args])
        self._check(call, "reply", outcome.reply, reply)
        self._check(call, "keys", outcome.keys, kept(self._model.database, call.keys))
        self.counts[call.script, isinstance(reply, CommandError)] += 1

    def _check(self, call: Call, what: str, real: Any, model: Any) -> None:
        if real == model or comparable(real) == comparable(model):
            return
        raise Difference(
            f"seed {self._seed}, call {self.counts.total() + 1}: {call.script}\n"
            f"KEYS {call.keys}\nARGV {call.args}\n"
            f"{what} of the server: {comparable(real)}\n{what} of the model:  {comparable(model)}"
        )


def comparable(reply: Any) -> Any:
    """Return a reply without what may differ: places in scripts, and the order of the fields of JSON."""
    if isinstance(reply, Exception):
        return ("error", _without_place(str(reply)))
    if isinstance(reply, list):
        return [comparable(item) for item in reply]
    if isinstance(reply, bytes):
        return _parsed(bytes(reply))
    return reply


def _without_place(text: str) -> str:
    text = text.partition(" script: ")[0].removeprefix("ERR ")
    text = re.sub(r"user_script:\d+: ", "", text)
    # The texts for a value that is no JSON name the token at which the server's parser stopped.
    return re.sub(r"^Expected .* but found .*", "no JSON", text)


def _parsed(text: bytes) -> Any:
    if text[:1] == b"{":
        try:
            return json.loads(text)
        except ValueError:
            return bytes(sorted(text))  # Several texts in one, of which somebody has written one that is no JSON.
    if text.startswith((b"user_script", b"Expected")):
        return _without_place(text.decode(errors="replace")).encode()
    return text
