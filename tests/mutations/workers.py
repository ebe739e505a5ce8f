"""Faults of once-locks and of the record of runs."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

_WORKERS = ("tests/acceptance/test_overlap.py", "tests/faults/test_workers.py")
_RUNS = ("tests/acceptance/test_runs.py",)
_LOCKS = (
    "tests/once/test_scripts_lock.py",
    "tests/once/test_scripts_guard.py",
    "tests/once/test_scripts_claims.py",
    "tests/once/test_scripts_waiters.py",
)

_BEGIN = "store/scripts/lua/once/begin.lua"
_END = "store/scripts/lua/once/end.lua"

WORKERS = (
    Mutation(
        name="a task begins although another one holds its lock",
        file=_BEGIN,
        old="local first = owner or head\n",
        new="local first = head\n",
        promise="test_guarantees.py::TestWork::test_two_bodies_of_a_key_never_overlap",
        acceptance=_WORKERS,
        room=_LOCKS,
    ),
    Mutation(
        name="a copy of a task begins while the first one runs",
        file=_BEGIN,
        old="if state == 'running' and runner ~= token and tonumber(until_ms) > now then",
        new="if false then",
        promise="test_guarantees.py::TestWork::test_a_message_that_is_delivered_twice_runs_once",
        acceptance=_WORKERS,
        room=_LOCKS,
    ),
    Mutation(
        name="a copy of a task that has ended begins",
        file=_BEGIN,
        old="if attempt < last_attempt or (attempt == last_attempt and state == 'done') then",
        new="if attempt < last_attempt then",
        promise="test_guarantees.py::TestWork::test_a_message_that_is_delivered_twice_runs_once",
        acceptance=_WORKERS,
        room=_LOCKS,
    ),
    Mutation(
        name="the end of a task frees the lock of another one",
        file=_END,
        old="if not lock or redis.call('HGET', lock, 'token') ~= token then",
        new="if not lock then",
        promise="test_work.py::TestOnce::test_the_end_of_a_block_that_lost_its_lock_frees_nothing",
        acceptance=_WORKERS,
        room=_LOCKS,
    ),
    Mutation(
        name="the end of a task wakes nobody who waits",
        file=_END,
        old="return {publish_standby, index_free_lock(key, waiters)}\n",
        new="return {publish_standby, 0}\n",
        promise="test_work.py::TestOnce::test_who_waits_runs_in_order",
        acceptance=_WORKERS,
        room=_LOCKS,
    ),
    Mutation(
        name="the lock of a long task is not renewed",
        file="store/scripts/lua/once/renew.lua",
        old="redis.call('PEXPIRE', lock, lease_ms)\n",
        new="",
        promise="test_work.py::TestOnce::test_a_block_that_lasts_for_longer_than_the_lease_keeps_its_lock",
        acceptance=_WORKERS,
        room=_LOCKS,
    ),
    Mutation(
        name="a lock is taken at publish although another task holds it",
        file="store/scripts/lua/shared/claim.lua",
        old="if not first or owner == claim.task_id or",
        new="if not first or owner or",
        promise="test_guarantees.py::TestWork::test_one_message_of_a_once_entry_is_queued",
        acceptance=_WORKERS,
        room=_LOCKS,
    ),
    Mutation(
        name="a lock is taken at publish although a task waits for it",
        file="store/scripts/lua/shared/claim.lua",
        old="if not first or owner == claim.task_id or",
        new="if not owner or owner == claim.task_id or",
        promise="test_work.py::TestOnce::test_who_comes_while_a_task_waits_does_not_overtake_it",
        acceptance=_WORKERS,
        room=_LOCKS,
    ),
    Mutation(
        name="no beginning or end of a run is recorded",
        file="runs/recorder.py",
        old="        self._fates.append(fate)\n",
        new="",
        promise="test_guarantees.py::TestRecords::test_you_can_ask_what_became_of_a_run",
        acceptance=_RUNS,
        room=("tests/runs/test_recorder.py",),
    ),
    Mutation(
        name="a late report of a beginning replaces the end of a run",
        file="store/scripts/lua/shared/record.lua",
        old="(weighs_less and not begins_again) or is_known",
        new="is_known",
        promise="test_work.py::TestRecords::test_a_report_that_is_sent_twice_counts_once",
        acceptance=_RUNS,
        room=("tests/runs/test_record.py", "tests/runs/test_recorder.py"),
    ),
    Mutation(
        name="a retry expires with the message before it",
        file="once/run_lifecycle.py",
        old="        request.expires = None\n",
        new="        pass\n",
        promise="test_work.py::TestRecords::test_a_retry_that_is_due_after_the_next_run_runs",
        acceptance=("tests/acceptance/test_retries.py",),
        room=("tests/once/test_fates.py",),
    ),
)
