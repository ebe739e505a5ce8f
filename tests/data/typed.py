"""What users write, and get wrong: a type checker complains of each line that says so, and of no other."""

from datetime import UTC, datetime, timedelta

from celery import Celery

from redbeat_lite import Entry, Expect, Misfire, Once, Pause, Pipeline, Schedules, cron, every, manual

app = Celery("proj")
schedules = Schedules(app)

schedules.add("a", "proj.say", 30)
schedules.add("a", "proj.say", timedelta(seconds=30), ["hello"], {"to": "you"}, {"queue": "slow"}, replace=True)
schedules.add("a", "proj.say", every(30), args=("hello",), misfire="skip", once=True, expires="interval")
schedules.add("a", "proj.say", cron("0 3 * * *"), misfire=Misfire("all", grace=60), once={"scope": "queue"})
schedules.add("a", "proj.say", manual(), start_at=datetime.now(UTC), max_runs=None, tags=["x"], on_failure=Pause(3))
schedules.add("a", "proj.say", 30, args="hello")  # wrong
schedules.add("a", "proj.say", 30, kwargs=["hello"])  # wrong
schedules.add("a", "proj.say", 30, misfire="skp")  # wrong
schedules.add("a", "proj.say", 30, max_run=3)  # wrong
schedules.add("a", "proj.say", 30, enabled="no")  # wrong
schedules.add("a", "proj.say", 30, once="yes")  # wrong

schedules.update("a", if_version=3, schedule=60, args=[1], max_runs=3, expect=Expect(finish_within=60), calendar="x")
schedules.update("a", once=Once(on_conflict="wait"), expect=False, on_failure="pause:3", jitter=5, description="")
schedules.update("a", max_run=3)  # wrong
schedules.update("a", misfire="skp")  # wrong
schedules.update("a", args="hello")  # wrong
schedules.update("a", start_at="tomorrow")  # wrong

entry = Entry("a", "proj.say", 30, misfire="coalesce", calendar="closed")
entry = schedules["a"].replace(enabled=False, kwargs={"to": "you"})
what = (entry.enabled, entry.once and entry.once.scope, entry.misfire.policy, entry.next_run_at, entry.kwargs["to"])
entry.enabled = False  # wrong
entry.kwargs["to"] = "me"  # wrong
entry.next_run_at = datetime.now(UTC)  # wrong
entry.replace(max_run=3)  # wrong
Entry("a", "proj.say", 30, misfire="skp")  # wrong

Once(key="{order}", scope="queue", on_conflict="raise", lease=30)
Once(on_conflict="wiat")  # wrong
Once(scope="queued")  # wrong
Misfire("al")  # wrong
Expect(trust="worker")  # wrong
Pipeline(app, [("proj.say", 1)], overlap="allow", ttl=timedelta(days=1))
Pipeline(app, [("proj.say", 1)], overlap="never")  # wrong
schedules.freezes.add("a*", seconds=60, mode="skip")
schedules.freezes.add("a*", seconds=60, mode="skipp")  # wrong
schedules.list(order="name")
schedules.list(order="task")  # wrong
