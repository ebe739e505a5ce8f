"""Why an entry that is not stored does not run."""

from __future__ import annotations

from datetime import datetime
from shlex import quote

from ...instants import from_ms
from .case import GONE, Case
from .explanation import Explanation, Reason, full


def gone(case: Case, instant: datetime | None) -> Explanation:
    """What became of an entry.

    Parameters:
        instant: at which it did not run, or not as far as is recorded; ``None`` for now.
    """
    name, found = case.evidence.name, case.evidence
    at = "" if instant is None else f" at {case.when(instant)}"
    change = case.last(case.now, *GONE)
    reasons = [] if change is None else [case.told(change, change.action)]
    since = None if change is None else change.at
    advice = None
    if found.quarantine is not None:
        set_aside = found.quarantine.get("at")
        since = from_ms(set_aside) if isinstance(set_aside, int) else since
        when = "" if since is None else f" since {case.when(since)}"
        reasons = [
            Reason("quarantined", full(f"In quarantine{when}: {found.quarantine.get('error')}"), since, "quarantine")
        ]
        advice = f"Mend that, then: celery -A ... redbeat quarantine release {quote(name)}."
    if found.refused is not None:
        sentence = f"The beat refuses the one in beat_schedule: {found.refused}"
        reasons.append(Reason("refused", full(sentence), None, "status"))
    if instant is not None and since is not None and instant < since:
        return Explanation(f"Whether {case.name} ran{at} is not recorded any more.", tuple(reasons), advice)
    verb = "does not run" if instant is None else "did not run"
    where = "in quarantine" if found.quarantine is not None else "not stored"
    tense = "is" if instant is None else "was"
    return Explanation(f"{case.name} {verb}{at}: it {tense} {where}.", tuple(reasons), advice)
