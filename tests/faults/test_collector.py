"""The collector notes each message of a queue once, whatever happens to the server."""

from __future__ import annotations

import json

import pytest
import redis

from tests.faults.collector import Collector
from tests.harness.history import HistoryLog, now_ms
from tests.harness.queues import check_queue, drained, queued
from tests.support.cases import together
from tests.support.server import Server
from tests.support.waiting import eventually


def message(second: int, id_: str = "") -> str:
    nominal = f"2026-01-01T00:00:{second:02}+00:00"
    headers = {"scheduled_at": nominal, "id": id_ or f"id{second}"}
    headers |= {"origin": "gen1@host", "periodic_task_name": "e"}
    properties = {"delivery_tag": f"tag{second}", "delivery_info": {"exchange": "", "routing_key": "celery"}}
    return json.dumps({"headers": headers, "properties": properties, "body": ""})


def test_copies_are_noted_and_messages_that_a_restarted_server_still_holds_are_not(
    server: Server, client: redis.Redis, log: HistoryLog
) -> None:
    def ids() -> list[str]:
        return [record["id"] for record in log.records()]

    collector = Collector(server.client, log)
    client.lpush("celery", *map(message, (1, 2, 3, 4)))
    eventually(lambda: ids() == ["id1", "id2", "id3", "id4"])
    # The server loses two messages, and holds one of the others twice.
    with client.pipeline() as pipe:
        pipe.delete("celery")
        pipe.lpush("celery", *map(message, (1, 2, 2)))
        pipe.execute()
    eventually(lambda: ids()[4:] == ["id2"])
    client.lpush("celery", *map(message, (3, 4, 5)))
    eventually(lambda: ids()[5:] == ["id3", "id4", "id5"], what="the lost messages")
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


def test_kombu_drains_the_messages_that_lie_in_a_queue(server: Server, client: redis.Redis) -> None:
    client.lpush("celery", *map(message, (1, 2, 3)))
    messages = queued(client)
    assert [message.id for message in messages] == ["id1", "id2", "id3"]
    identities = [message.identity for message in messages]
    assert [message.identity for message in drained(server.url)] == identities


@together(
    ("messages", "what"),
    [
        ([message(1), message(2), message(4)], "was never sent"),
        ([message(1), message(2), message(2)], "was sent 2 times"),
        ([message(1), message(2), message(2, "another")], "more than one id"),
        ([message(1), message(2).replace(":02+", ":02.5+")], "is no time of its rule"),
        ([message(2), message(1), message(3)], "1767225601000 was sent after"),
    ],
)
def test_what_is_wrong_in_a_queue_is_found(server: Server, messages: list[str], what: str) -> None:
    with server.client() as client:
        client.delete("celery")
        client.lpush("celery", message(0), *messages, message(5))
        with pytest.raises(AssertionError, match=what):
            check_queue(client, ["e"], 1000)


def test_an_entry_that_began_late_or_never_is_found(client: redis.Redis) -> None:
    client.lpush("celery", *map(message, range(6)))
    check_queue(client, ["e"], 1000)
    with pytest.raises(AssertionError, match="first run: other: no run between"):
        check_queue(client, ["e", "other"], 1000)
