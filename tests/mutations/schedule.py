"""Faults of what is stored: writes, quarantine, freezes, configuration and repair."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

_SCRIPTS = ("tests/store/test_scripts.py",)
_CONFIG = ("tests/beat/test_config_entries.py",)
_FLUSH = ("tests/acceptance/test_flush.py",)
_FREEZES = ("tests/beat/test_freezes.py",)
_API = ("tests/api/test_schedules_mapping.py", "tests/api/test_schedules_add.py")

_TRANSACT = "store/scripts/lua/schedule/transact.lua"
_STORE = "store/store.py"
_FREEZING = "beat/freezing.py"

SCHEDULE = (
    Mutation(
        name="put wakes nobody",
        file=_TRANSACT,
        old="  redis.pcall('PUBLISH', wake, 'head')\n",
        new="",
        promise="test_guarantees.py::TestEdits::test_an_added_entry_that_is_due_is_sent_at_once",
        acceptance=("tests/acceptance/test_wakeup.py",),
        room=_SCRIPTS,
    ),
    Mutation(
        name="put writes whatever the state is by now",
        file=_STORE,
        old='# New state and due time.\n_MOVE = """\n    IF HGET state $1 IS $2\n',
        new='_MOVE = """\n',
        promise="test_edits.py::TestEdits::test_of_two_writers_of_one_version_one_wins",
        room=(*_SCRIPTS, *_API),
    ),
    Mutation(
        name="put that is sent twice answers as if it had failed",
        file=_TRANSACT,
        old="if kept then\n  return {0, kept}\nend\n",
        new="",
        promise="test_edits.py::TestEdits::test_a_change_whose_reply_was_lost_is_made_once",
        acceptance=("tests/faults/test_proxied.py",),
        room=(*_SCRIPTS, *_API),
    ),
    Mutation(
        name="put asks a leader for no term",
        file="store/transact.py",
        old="    if term is not None:\n        guards = [Step(_IN_OFFICE, term), *guards]\n",
        new="",
        promise="test_lead.py::TestALostLease::test_a_leader_that_was_frozen_writes_no_configuration",
        room=("tests/beat/test_terms.py", *_CONFIG),
    ),
    Mutation(
        name="put leaves an entry that is stored again in quarantine",
        file=_STORE,
        old="    ZADD due $4 $1\n    HDEL quarantine $1\n",
        new="    ZADD due $4 $1\n",
        promise="test_guarantees.py::TestIsolation::test_one_bad_entry_harms_nobody_else",
        room=(*_SCRIPTS, "tests/beat/test_tick_poison.py"),
    ),
    Mutation(
        name="put does not tell the leader of pauses",
        file=_STORE,
        old="if edit.line and edit.line.change.startswith(_PAUSES):",
        new="if False:",
        promise="test_guarantees.py::TestIsolation::test_a_config_entry_stays_paused_after_a_flush",
        acceptance=_FLUSH,
        room=_CONFIG,
    ),
    Mutation(
        name="quarantine sets aside what was mended meanwhile",
        file="store/leader_store.py",
        old="    IF HGET entries $1 IS $2\n    IF HGET state $1 IS $3\n",
        new="",
        promise="test_edits.py::TestEdits::test_what_was_mended_meanwhile_is_not_set_aside",
        room=_SCRIPTS,
    ),
    Mutation(
        name="quarantine leaves the due time",
        file="store/leader_store.py",
        old="    ZREM due $1\n",
        new="",
        promise="test_guarantees.py::TestIsolation::test_one_bad_entry_harms_nobody_else",
        acceptance=("tests/acceptance/test_garbage.py",),
        room=(*_SCRIPTS, "tests/beat/test_tick_poison.py"),
    ),
    Mutation(
        name="quarantine asks for no term",
        file="store/leader_store.py",
        old="        return self._edit(steps, term)\n",
        new="        return self._edit(steps, None)\n",
        promise="test_lead.py::TestALostLease::test_nothing_is_set_aside",
        room=_SCRIPTS,
    ),
    Mutation(
        name="pauses of config entries are forgotten with the server's data",
        file="beat/config_entries.py",
        old="        if before is None:\n",
        new="        if True:\n",
        promise="test_guarantees.py::TestIsolation::test_a_config_entry_stays_paused_after_a_flush",
        acceptance=_FLUSH,
        room=_CONFIG,
    ),
    Mutation(
        name="unchanged config entries are written again",
        file="beat/config_entries.py",
        old="        if not has_definition(stored, configured):\n",
        new="        if True:\n",
        promise="test_edits.py::TestEdits::test_a_restart_changes_no_config_entry",
        acceptance=("tests/acceptance/test_config_entries.py",),
        room=_CONFIG,
    ),
    Mutation(
        name="repair does not count due times",
        file="beat/repair.py",
        old="if entries == states == due:",
        new="if entries == states:",
        promise="test_guarantees.py::TestIsolation::test_lost_parts_of_the_schedule_are_mended",
        acceptance=_FLUSH,
        room=_CONFIG,
    ),
    Mutation(
        name="a pause with an end does not end",
        file="entries/lifecycle.py",
        old="if not state.paused or state.paused_until is None or state.paused_until > now:",
        new="if True:",
        promise="test_guarantees.py::TestIsolation::test_a_pause_with_an_end_ends_at_its_time",
        room=_FREEZES,
    ),
    Mutation(
        name="a freeze does not end at its time",
        file="store/scripts/lua/schedule/peek.lua",
        old="if tonumber(frozen_until) > tonumber(now) then",
        new="if frozen_until ~= '0' then",
        promise="test_guarantees.py::TestIsolation::test_a_freeze_ends_at_its_time",
        room=_FREEZES,
    ),
    Mutation(
        name="a freeze is forgotten with the server's data",
        file=_FREEZING,
        old="        is_lost = made_at_of(stored) < made_at_of(self.seen)\n",
        new="        is_lost = False\n",
        promise="test_guarantees.py::TestIsolation::test_a_freeze_holds_after_a_flush",
        acceptance=_FLUSH,
        room=_FREEZES,
    ),
    Mutation(
        name="every prefix names the same keys",
        file="store/keys.py",
        old='return cls(*(f"{key_root(prefix)}:{part}" for part in cls.__slots__))',
        new='return cls(*(f"{{redbeat-lite}}:{part}" for part in cls.__slots__))',
        promise="test_guarantees.py::TestEdits::test_two_prefixes_are_two_schedules",
        room=("tests/ground/test_settings.py",),
    ),
    Mutation(
        name="a prefix with braces of its own gets another pair",
        file="settings.py",
        old='return prefix if prefix.endswith("}") else f"{{{prefix}}}"',
        new='return f"{{{prefix}}}"',
        promise="test_guarantees.py::TestEdits::test_two_prefixes_are_two_schedules",
        room=("tests/ground/test_settings.py",),
    ),
)
