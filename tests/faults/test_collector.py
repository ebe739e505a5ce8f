"""The collector notes each message of a queue once, whatever happens to the server."""

from __future__ import annotations

import json

import redis

from tests.harness.collector import Collector
from tests.harness.history import HistoryLog, now_ms
from tests.support.server import Server
from tests.support.waiting import eventually


def message(second: int) -> str:
    headers = {"scheduled_at": f"2026-01-01T00:00:{second:02}+00:00", "id": f"id{second}"}
    headers |= {"origin": "gen1@host", "periodic_task_name": "e"}
    return json.dumps({"headers": headers})


def test_copies_are_noted_and_messages_that_a_restarted_server_still_holds_are_not(
    server: Server, client: redis.Redis, log: HistoryLog
) -> None:
    def ids() -> list[str]:
        return [record["id"] for record in log.records()]

    collector = Collector(server.client, log)
    client.lpush("celery", *map(message, (1, 2, 3, 4)))
    eventually(lambda: ids() == ["id1", "id2", "id3", "id4"])
    with client.pipeline() as pipe:  # It has lost the last two, and has one of the others twice.
        pipe.delete("celery")
        pipe.lpush("celery", *map(message, (1, 2, 2)))
        pipe.execute()
    eventually(lambda: ids()[4:] == ["id2"])
    client.lpush("celery", *map(message, (3, 4, 5)))
    eventually(lambda: ids()[5:] == ["id3", "id4", "id5"], what="what was lost and came again")
    collector.move()
    eventually(lambda: collector.places == client.llen("celery"), what="a second look at all")
    assert len(ids()) == 8, "they did not come again"
    collector.stop()


def test_a_message_was_not_there_before_the_last_look(server: Server, client: redis.Redis, log: HistoryLog) -> None:
    collector = Collector(server.client, log)
    client.lpush("celery", message(1))
    eventually(log.records)
    client.lpush("celery", message(2))
    pushed = now_ms()
    eventually(lambda: len(log.records()) == 2)
    first, second = log.records()
    assert first["since"] < second["since"] <= pushed
    assert second["since"] <= second["at"]
    collector.stop()
