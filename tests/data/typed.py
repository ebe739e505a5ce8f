"""What users write, and get wrong: a type checker complains of each line that says so, and of no other."""

from datetime import UTC, datetime, timedelta

from celery import Celery
from celery.schedules import crontab, schedule

from redbeat_lite import Entry, Expect, Misfire, Once, Pause, Pipeline, Schedules, at, cron, every, manual, rrule

app = Celery("proj")
schedules = Schedules(app)
now = datetime.now(UTC)

schedules.add("a", "proj.say", 30)
schedules.add("a", "proj.say", timedelta(seconds=30), ["hello"], {"to": "you"}, {"queue": "slow"}, replace=True)
schedules.add("a", "proj.say", every(30), args=("hello",), misfire="skip", once=True, expires="interval")
schedules.add("a", "proj.say", cron("0 3 * * *"), misfire=Misfire("all", grace=60), once={"scope": "queue"})
schedules.add("a", "proj.say", manual(), start_at=datetime.now(UTC), max_runs=None, tags=["x"], on_failure=Pause(3))
schedules.add("a", "proj.say", crontab(minute=5), start_at=None, once=None, expires="5m", history=0)
schedules.add("a", "proj.say", schedule(30), misfire={"policy": "all"}, expect={"failures": 3}, calendar=None)
schedules.add("a", "proj.say", None)  # wrong
schedules.add("a", "proj.say", now)  # wrong
schedules.add("a", "proj.say", {"every": 5}, start_at="2026-12-01T09:00+01:00")
schedules.add(Entry("a", "proj.say", 30))  # wrong
schedules.add("a", "proj.say", 30, queue="slow")  # wrong
schedules.add("a", "proj.say", 30, expires=now)  # wrong
schedules.add("a", "proj.say", 30, end_at=3600)  # wrong
schedules.add("a", "proj.say", 30, max_runs="3")  # wrong
schedules.add("a", "proj.say", 30, expect=True)  # wrong
schedules.add("a", "proj.say", 30, on_failure=3)  # wrong
schedules.add("a", "proj.say", 30, args="hello")  # wrong
schedules.add("a", "proj.say", 30, kwargs=["hello"])  # wrong
schedules.add("a", "proj.say", 30, misfire="skp")  # wrong
schedules.add("a", "proj.say", 30, max_run=3)  # wrong
schedules.add("a", "proj.say", 30, enabled="no")  # wrong
schedules.add("a", "proj.say", 30, once="yes")  # wrong
schedules.add("a", "proj.say", 30, once={"key": "{to}", "on_conflict": "wait", "lease": "5m", "max_waiters": 3})
schedules.add("a", "proj.say", 30, once={"on_conflict": "wiat"})  # wrong
schedules.add("a", "proj.say", 30, once={"on_conflit": "wait"})  # wrong
schedules.add("a", "proj.say", 30, expect={"start_within": "30s", "failures": 3})
schedules.add("a", "proj.say", 30, expect={"failures": "3"})  # wrong
schedules.add("a", "proj.say", 30, expect={"finish": 60})  # wrong
schedules.add("a", "proj.say", 30, misfire={"policy": "all", "grace": timedelta(hours=1), "limit": 5})
schedules.add("a", "proj.say", 30, misfire={"policy": "al"})  # wrong

schedules.update("a", if_version=3, schedule=60, args=[1], max_runs=3, expect=Expect(finish_within=60), calendar="x")
schedules.update("a", once=Once(on_conflict="wait"), expect=False, on_failure="pause:3", jitter=5, description="")
schedules.update("a", max_run=3)  # wrong
schedules.update("a", misfire="skp")  # wrong
schedules.update("a", args="hello")  # wrong
schedules.update("a", once={"scope": "queued"})  # wrong
schedules.update("a", misfire={"limt": 5})  # wrong
schedules.update("a", max_runs=3, note="why")
schedules.update("a", note=None)  # wrong
schedules.remove("a", note="why")
schedules.remove("a", "why")  # wrong
schedules.update("a", start_at=5)  # wrong

schedules.update("a", {"schedule": 30})  # wrong
schedules.update("a", schedule=None)  # wrong
schedules.update("a", if_version="3")  # wrong
schedules.add_many([("a", "proj.say", 30)])  # wrong
schedules.add_many(Entry("a", "proj.say", 30))  # wrong
schedules["a"] = {"task": "proj.say", "schedule": 30}  # wrong

entry = Entry("a", "proj.say", 30, misfire="coalesce", calendar="closed")
entry = schedules["a"].replace(enabled=False, kwargs={"to": "you"})
what = (entry.enabled, entry.once and entry.once.scope, entry.misfire.policy, entry.next_run_at, entry.kwargs["to"])
entry.enabled = False  # wrong
entry.kwargs["to"] = "me"  # wrong
entry.next_run_at = datetime.now(UTC)  # wrong
entry.replace(max_run=3)  # wrong
entry.save()  # wrong
print(entry.nxet_run_at)  # wrong
schedules["a"].next_run_at.isoformat()  # wrong
entry.tags.append("x")  # wrong
Entry("a", "proj.say", 30, enable=True)  # wrong
Entry("a", "proj.say", every=30)  # wrong
Entry("a", "proj.say", 30, misfire="skp")  # wrong
Entry("a", "proj.say", 30, once={"lease": None})  # wrong

Once(key="{order}", scope="queue", on_conflict="raise", lease=30)
every("5m", align=True), cron("0 3 * * *", tz="UTC"), at(now), rrule("FREQ=DAILY", start=now)
every(minutes=5)  # wrong
every(None)  # wrong
cron(minute=0, hour=3)  # wrong
cron("0 3 * * *", "UTC")  # wrong
at("2026-12-01T08:00:00Z")
at(2026)  # wrong
rrule(freq="DAILY")  # wrong
Once(on_conflict="wiat")  # wrong
Once(lease=None)  # wrong
Once("{order}", "wait")  # wrong
Once(scope="queued")  # wrong
Misfire("al")  # wrong
Misfire("all", grace=now)  # wrong
Expect(finish=60)  # wrong
Expect(failures="3")  # wrong
Pause("3")  # wrong
Pipeline(app, [("proj.say", 1)], overlap="allow", ttl=timedelta(days=1))
Pipeline(app, [("first", "proj.say", 2), ["proj.say", 1.5]], deadline="1h", params={"x": 1})
Pipeline(app, [("proj.say", 1)], overlap="never")  # wrong
Pipeline(app, "proj.say")  # wrong
Pipeline(app, [("proj.say", "high")])  # wrong
Pipeline(app, [("proj.say", 1)], ttl=now)  # wrong
schedules.freeze("2h")
schedules.freeze(60, note=3)  # wrong
schedules.freeze(minutes=5)  # wrong
schedules.pause("a", seconds=timedelta(hours=2))
schedules.select("a*").pause("note", seconds=now)  # wrong
schedules.backfills.start("a", now - timedelta(days=1), now, max_active=None, rate=2)
schedules.backfills.start("a", "2026-11-01", now)  # wrong
schedules.backfills.start("a", now, now, max_active="none")  # wrong
schedules.backfills.start("a", now, now, max_activ=3)  # wrong
schedules.runs("a", outcome=("failed", "lost"), since=now)
schedules.runs("a", outcome="fail")  # wrong
schedules.runs("a", since="24h")  # wrong
schedules.upcoming("1h")  # wrong
schedules.select(tags="x")  # wrong
schedules.pause(["a"])  # wrong
schedules.run_now("a", ["x"])  # wrong
schedules.list(5, limit=10)
schedules.list(order="name")  # wrong
