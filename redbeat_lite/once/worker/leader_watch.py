"""Who says that nobody leads: a worker, as no beat can."""

from __future__ import annotations

from celery.utils.log import get_logger

from ...runs.incident import LEADERLESS, Case
from ...runs.incident_store import IncidentStore
from ...storage.keys import Keys
from ...storage.redis_values import server_ms
from ..runtime import Runtime

logger = get_logger(f"celery.{__name__}")


def look_for_leader(runtime: Runtime) -> None:
    """Open the incident ``no_leader``, if there is a schedule, a beat has led it, and none does by now; who leads next
    closes it."""
    client, settings = runtime.store.client, runtime.settings
    keys = Keys.of(settings.key_prefix)
    pipe = client.pipeline(transaction=False)
    pipe.exists(keys.leader)
    pipe.hget(keys.meta, "ticked")
    pipe.hlen(keys.entries)
    pipe.zrange(keys.beats, -1, -1, withscores=True)
    leads, ticked, entries, last = pipe.execute()
    if leads or not entries or not (ticked or b"").isdigit():
        return
    now = server_ms(client)
    silence = now - int(ticked)
    # A leader that is stuck gives no sign of life while its lease runs. Who stands by asks for it when it ends.
    asks = last[0][1] if last else 0
    if now - max(int(ticked) + 1000 * settings.lease, asks) <= 1000 * LEADERLESS:
        return
    case = Case("no_leader", "", now, f"no beat has led for {silence / 1000:.0f} s")
    if IncidentStore(client, settings.key_prefix).apply(None, None, [("open", case.field, case.encode())]):
        logger.error("Incident %s is open, %s: %s", case.id, case.kind, case.text)
