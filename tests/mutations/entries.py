"""Faults of rules, misfires, the life of an entry, and backfills."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

_LIFE = ("tests/beat/test_tick_misfires.py", "tests/rules/test_misfire.py")
_CLOCK = ("tests/beat/test_tick_clock.py",)
_BACKFILLS = ("tests/beat/test_backfills.py", "tests/entries/test_backfill.py")
_BACKFILL_FAULTS = ("tests/faults/test_backfills.py",)

_LIFECYCLE = "entries/lifecycle.py"
_BACKFILLING = "entries/backfill.py"

ENTRIES = (
    Mutation(
        name="an entry that goes back in time keeps its generation",
        file="entries/state.py",
        old='changes.update(generation=random_hex(4), deltas="")',
        new='changes.update(deltas="")',
        promise="test_delivery.py::TestClocks::test_an_edit_by_a_clock_that_is_far_behind_repeats_no_id",
        room=_CLOCK,
    ),
    Mutation(
        name="an edit sends again what was sent",
        file=_LIFECYCLE,
        old="nominal = first(after, now, state.last)",
        new="nominal = first(after, now)",
        promise="test_delivery.py::TestClocks::test_an_edit_by_a_clock_that_is_behind_repeats_no_run",
        room=(*_LIFE, "tests/beat/test_tick_ends.py"),
    ),
    Mutation(
        name="another start_at does not change when an entry runs",
        file=_LIFECYCLE,
        old="    if before.start_at != after.start_at:\n        return False\n",
        new="",
        promise="test_guarantees.py::TestEdits::test_an_entry_that_is_to_start_later_stops_until_then",
        room=(*_LIFE, "tests/api/test_schedules_add.py"),
    ),
    Mutation(
        name="an edit keeps the count of failed publishes",
        file=_LIFECYCLE,
        old='return state.moved(nominal, attempts=0, error="")',
        new="return state.moved(nominal)",
        promise="test_edits.py::TestEdits::test_an_edit_forgets_failed_publishes",
        room=(*_LIFE, "tests/beat/test_tick_failed_publish.py"),
    ),
    Mutation(
        name="the grace of skip ignores the gap to the next run",
        file="rules/misfire.py",
        old="grace = min(grace, (following - missed.last) // 4)",
        new="pass",
        promise="test_guarantees.py::TestMissedRuns::test_skip_sends_none_that_is_late",
        room=_LIFE,
    ),
    Mutation(
        name="a resumption sends what was missed during the pause",
        file=_LIFECYCLE,
        old="nominal = state.nominal if catch_up else ahead(entry, state, now)",
        new="nominal = state.nominal",
        promise="test_guarantees.py::TestIsolation::test_a_resumption_sends_nothing_that_the_pause_held_back",
        room=(*_LIFE, "tests/beat/test_tick_misfires.py"),
    ),
    Mutation(
        name="max_runs counts one run for each batch",
        file=_LIFECYCLE,
        old="count=state.count + len(published.emit),",
        new="count=state.count + min(len(published.emit), 1),",
        promise="test_guarantees.py::TestEdits::test_max_runs_is_exact",
        room=("tests/beat/test_tick_ends.py", *_LIFE),
    ),
    Mutation(
        name="a backfill begins its next step with the last run of this one",
        file=_BACKFILLING,
        old="cursor=sent[-1] + 1 if sent else backfill.cursor,",
        new="cursor=sent[-1] if sent else backfill.cursor,",
        promise="test_guarantees.py::TestRecords::test_the_past_is_run_again_each_occurrence_once",
        acceptance=_BACKFILL_FAULTS,
        room=_BACKFILLS,
    ),
    Mutation(
        name="a backfill sends what another one has sent",
        file=_BACKFILLING,
        old="    for skipped_first, skipped_last in skip:\n",
        new="    for skipped_first, skipped_last in ():\n",
        promise="test_guarantees.py::TestRecords::test_the_past_is_run_again_each_occurrence_once",
        acceptance=_BACKFILL_FAULTS,
        room=_BACKFILLS,
    ),
    Mutation(
        name="a backfill sends more than max_active at once",
        file=_BACKFILLING,
        old="return max(min(most, backfill.max_active - len(backfill.active)), 0)",
        new="return most",
        promise="test_guarantees.py::TestRecords::test_a_backfill_has_no_more_out_than_it_may",
        acceptance=_BACKFILL_FAULTS,
        room=_BACKFILLS,
    ),
    Mutation(
        name="a backfill ends while it waits for the end of a run",
        file="beat/backfills.py",
        old="        if not emit and next(nominals, None) is None:\n",
        new="        if not emit:\n",
        promise="test_guarantees.py::TestRecords::test_a_backfill_has_no_more_out_than_it_may",
        acceptance=_BACKFILL_FAULTS,
        room=_BACKFILLS,
    ),
    Mutation(
        name="a backfill goes on during a freeze",
        file="store/scripts/lua/schedule/peek.lua",
        old="return {frozen_until, {'', frozen_until}, parts_of({}), freeze}",
        new="return {now, {'', frozen_until}, parts_of({}), freeze}",
        promise="test_guarantees.py::TestRecords::test_a_freeze_holds_a_backfill",
        room=(*_BACKFILLS, "tests/beat/test_freezes.py"),
    ),
    Mutation(
        name="messages have no time for clocks that differ",
        file="settings.py",
        old="return round(1000 * self.clock_slack)",
        new="return 0",
        promise="test_guarantees.py::TestDelivery::test_a_message_lives_for_the_gap_and_five_seconds",
        room=("tests/beat/test_tick_messages.py",),
    ),
    Mutation(
        name="a resumption never catches up",
        file=_LIFECYCLE,
        old="nominal = state.nominal if catch_up else ahead(entry, state, now)",
        new="nominal = ahead(entry, state, now)",
        promise="test_guarantees.py::TestIsolation::test_a_resumption_that_catches_up_sends_what_the_pause_held_back",
        acceptance=("tests/acceptance/test_wakeup.py",),
        room=_LIFE,
    ),
    Mutation(
        name="an edit of something else postpones the next run",
        file=_LIFECYCLE,
        old="keeps_schedule = same_runs(before, after)",
        new="keeps_schedule = False",
        promise="test_guarantees.py::TestEdits::test_an_edit_of_something_else_postpones_nothing",
        room=(*_LIFE, "tests/api/test_schedules_add.py"),
    ),
    Mutation(
        name="the name of an entry does not decide its time",
        file="rules/rule.py",
        old='blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()',
        new="__import__('os').urandom(8)",
        promise="test_guarantees.py::TestManyEntries::test_the_name_of_an_entry_chooses_its_time",
        room=("tests/rules/test_spread.py", "tests/api/test_spread.py"),
    ),
    Mutation(
        name="an entry whose definition has the text of a tag has the tag",
        file="entries/selection.py",
        old="if self.tag is not None and self.tag not in entry.tags:",
        new="if False:",
        promise="test_commands.py::TestEntries::test_entries_are_selected_by_their_tags",
        room=("tests/entries/test_selection.py", "tests/api/test_selected.py"),
    ),
    Mutation(
        name="an entry is paused one failure too early",
        file="runs/incident_fold.py",
        old="if strikes >= policy.after:",
        new="if strikes + 1 >= policy.after:",
        promise="test_work.py::TestPeople::test_an_entry_whose_runs_fail_is_paused",
        room=("tests/runs/test_fold.py", "tests/beat/test_on_failure.py"),
    ),
)
