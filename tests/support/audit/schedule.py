"""The laws of schedules: which messages come, and which may not."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import groupby, pairwise

from tests.support.audit.history import (
    FOREVER,
    Broken,
    Definition,
    Entry,
    History,
    Line,
    Record,
    returned,
)

# -- each run once ---------------------------------------------------------------------------------


def sent_once(history: History, entry: Entry) -> Iterator[Broken]:
    """Each nominal time is sent at most once, and at least once unless something excuses it."""
    lines: dict[int, list[int]] = defaultdict(list)
    for line, message in entry.runs:
        lines[message["nominal"]].append(line)
        if message["at"] < message["nominal"] - history.setup.slack:
            yield entry.name, (line,), f"{message['nominal']} was sent early"
    for nominal, copies in lines.items():
        if history.is_exact and len(copies) > 1:
            yield entry.name, tuple(copies), f"{nominal} was sent {len(copies)} times"
    handled = {nominal for nominal, _ in entry.handled}
    for definition in entry.definitions:
        for nominal in required(history, definition):
            if nominal not in handled and not is_excused(history, entry, definition, nominal):
                yield entry.name, (definition.window.line,), f"{nominal} was never sent"


def sent_or_left_out(history: History, entry: Entry) -> Iterator[Broken]:
    """No nominal time is left out twice, and none is both sent and left out."""
    lines = {message["nominal"]: line for line, message in entry.runs}
    for line, left_out in entry.left_out:
        for nominal in left_out["nominals"]:
            if history.is_exact and nominal in lines:
                what = f"{nominal} was left out, and was sent or left out before"
                yield entry.name, (lines[nominal], line), what
            lines[nominal] = line


def one_id(_: History, entry: Entry) -> Iterator[Broken]:
    """A nominal time that is sent again has the same id."""
    first: dict[int, Line] = {}
    for line, message in entry.runs:
        first_line, first_message = first.setdefault(message["nominal"], (line, message))
        if message["id"] != first_message["id"]:
            yield entry.name, (first_line, line), f"{message['nominal']} has more than one id"


def required(history: History, definition: Definition) -> list[int]:
    """Return the nominal times that surely came under a definition, and are old enough."""
    until = min(definition.window.until, history.end) - history.setup.late
    return definition.nominal_times(definition.window.since, until)


def is_excused(history: History, entry: Entry, definition: Definition, nominal: int) -> bool:
    """Return whether a nominal time may have been left out.

    The entry was held, or it had had all of its runs, or the run was late and its misfire policy
    lets it go.
    """
    # A fault may have kept the run back until the entry was held.
    kept_back = history.kept_back(nominal)
    if any(window.perhaps(nominal, kept_back) for window in history.held(entry)):
        return True
    if is_used_up(history, entry, definition):
        return True
    call = definition.call
    policy = call.get("misfire", "coalesce")
    late = history.setup.late
    if policy == "all" and call.get("grace") is None and call.get("limit") is None:
        # A fault that had not ended in time may still keep the run back, or may have done so until
        # the entry was edited or removed.
        until = min(definition.window.until, history.end)
        return history.is_faulty(until - late, until)
    ends = [window.maybe_until for window in history.held(entry)]
    is_unheard = any(end <= nominal <= end + history.setup.deaf for end in ends)
    if not is_unheard and not history.is_faulty(nominal - late, nominal + late):
        return False
    if policy == "coalesce" and call.get("grace") is None:
        return has_substitute(history, entry, definition, nominal)
    return True


def is_used_up(history: History, entry: Entry, definition: Definition) -> bool:
    """Return whether an entry has had all of its runs by the end of a definition."""
    limit = definition.call.get("max_runs")
    if limit is None:
        return False
    window = definition.window
    adds = [call for _, call in entry.calls if call["act"] == "add" and call.get("ok") is not False]
    began = [add["began"] for add in adds if add["began"] <= window.maybe_since]
    since = max(began, default=0)
    runs = {
        message["nominal"]
        for _, message in entry.runs
        if message["at"] >= since and history.earliest(message) <= window.maybe_until
    }
    return bool(len(runs) >= limit)


def has_substitute(history: History, entry: Entry, definition: Definition, nominal: int) -> bool:
    """Return whether a later run stands for a late one, or there was no time for one."""
    until = history.undisturbed(entry, nominal, history.setup.late)
    if until > min(definition.window.until, history.end):
        return True
    return any(nominal < handled <= until for handled, _ in entry.handled)


def first_run(history: History, entry: Entry) -> Iterator[Broken]:
    """An interval without a phase has its first run within one interval.

    If a fault or a pause falls into it, it has that long after the end of that.
    """
    for definition in entry.definitions:
        rule = definition.rule
        if "every" not in rule or "phase" in rule or is_used_up(history, entry, definition):
            continue
        since = definition.window.since
        until = history.undisturbed(entry, since, rule["every"] + history.setup.late)
        if until > min(definition.window.until, history.end):
            continue
        if not any(since <= at <= until for _, at in entry.handled):
            what = f"no run between {since} and {until}"
            yield entry.name, (definition.window.line,), what


def max_runs(history: History, entry: Entry) -> Iterator[Broken]:
    """There is never one run more than ``max_runs``. A run too few breaks "sent once"."""
    for definition in entry.definitions:
        call = definition.call
        limit = call.get("max_runs")
        if limit is None or call["act"] != "add" or call.get("ok") is not True:
            continue
        window = definition.window
        runs = {
            message["nominal"]: line
            for line, message in entry.runs
            if window.perhaps(history.earliest(message), message["at"])
        }
        counted = {
            message["nominal"]
            for _, message in entry.runs
            if message["nominal"] in runs and surely_counts(history, entry, message)
        }
        if len(counted) > limit:
            what = f"{len(runs)} runs, and the limit is {limit}"
            yield entry.name, (window.line, *runs.values()), what


def surely_counts(history: History, entry: Entry, message: Record) -> bool:
    """Return whether a run surely counts.

    Where a message is sent before the schedule notes it, a fault or an edit between the two leaves
    it out.
    """
    if history.is_exact:
        return True
    since = message["at"] - history.setup.slack
    until = message["at"] + history.setup.slack
    is_edited = any(call["began"] <= until and since <= returned(call) for _, call in entry.calls)
    return not is_edited and not history.is_faulty(since, until)


# -- in time, and in order -------------------------------------------------------------------------


def punctual(history: History, entry: Entry) -> Iterator[Broken]:
    """A run comes within the bound of its definition, unless it is due in a fault."""
    for line, nominal, delay in delays(history, entry):
        definition = entry.definition_at(nominal)
        bound = None if definition is None else definition.call.get("punctual")
        if bound is not None and delay > bound:
            what = f"{nominal} came {delay} ms late, and {bound} ms are allowed"
            yield entry.name, (line,), what


def delays(history: History, entry: Entry) -> Iterator[tuple[int, int, int]]:
    """Yield the runs that were not due in a fault: line, nominal time, and delay in ms."""
    for line, message in entry.runs:
        nominal = message["nominal"]
        if not history.is_faulty(nominal, nominal):
            yield line, nominal, message["at"] - nominal


def silent(history: History, entry: Entry) -> Iterator[Broken]:
    """No entry is silent for longer than its definition says."""
    calls = [definition.call for definition in entry.definitions]
    bound = max((call["silent"] for call in calls if "silent" in call), default=FOREVER)
    for line, silence in silences(history, entry):
        if silence > bound:
            what = f"nothing came for {silence} ms, and {bound} ms are allowed"
            yield entry.name, (line,), what


def silences(history: History, entry: Entry) -> Iterator[tuple[int, int]]:
    """Yield the times in ms from each message to the next or to the end, and its line."""
    arrivals = sorted((message["at"], line) for line, message in entry.sent)
    arrivals.append((history.end, 0))
    for (before, line), (after, _) in pairwise(arrivals):
        yield line, after - before


def in_order(history: History, entry: Entry) -> Iterator[Broken]:
    """An entry's runs are sent in the order of their nominal times, where the history shows it."""
    for (last_line, last), (line, message) in pairwise(entry.runs):
        if history.setup.ordered and message["nominal"] < last["nominal"]:
            what = f"{message['nominal']} was sent after {last['nominal']}"
            yield entry.name, (last_line, line), what


# -- what somebody asked for -----------------------------------------------------------------------


def old_rule(history: History, entry: Entry) -> Iterator[Broken]:
    """No run by an old rule after an edit has returned.

    An entry whose adding was refused does not run at all.
    """
    is_refused = not entry.definitions and any(call["act"] == "add" for _, call in entry.calls)
    for line, message in entry.runs:
        nominal = message["nominal"]
        at = message["at"]
        began = history.earliest(message)
        possible = [each for each in entry.definitions if each.window.perhaps(began, at)]
        if is_refused and not any(window.surely(began) for window in entry.removed):
            what = f"{nominal} was sent, and there was no such entry"
            yield entry.name, (line,), what
        if possible and not any(definition.has(nominal) for definition in possible):
            what = f"{nominal} is no time of its rule at {at}"
            yield entry.name, (possible[-1].window.line, line), what


def held_entries(history: History, entry: Entry) -> Iterator[Broken]:
    """No run while an entry is paused or frozen, or after its removal."""
    for window in history.held(entry):
        for line, message in entry.runs:
            if window.surely(history.earliest(message)) and window.surely(message["at"]):
                what = f"{message['nominal']} was sent at {message['at']}"
                yield entry.name, (window.line, line), what


def lost_updates(_: History, entry: Entry) -> Iterator[Broken]:
    """``if_version`` loses no update: of two edits of one version, one is refused."""
    edits: dict[int, list[int]] = defaultdict(list)
    newest = (0, 0)  # The version, and when its edit returned.
    for line, call in sorted(entry.calls, key=lambda item: returned(item[1])):
        if call["act"] in ("add", "remove"):
            edits.clear()
            newest = (0, 0)
        if not call.get("ok") or "if_version" not in call:
            continue
        if call["version"] == call["if_version"]:
            continue  # It changed nothing.
        edits[call["if_version"]].append(line)
        if call["if_version"] < newest[0] and call["began"] > newest[1]:
            what = f"an edit of version {call['if_version']} overwrote version {newest[0]}"
            yield entry.name, (line,), what
        newest = max(newest, (call["version"], returned(call)))
    for version, lines in edits.items():
        if len(lines) > 1:
            what = f"{len(lines)} edits of version {version} succeeded"
            yield entry.name, tuple(lines), what


# -- misfires --------------------------------------------------------------------------------------


def misfires(history: History, entry: Entry) -> Iterator[Broken]:
    """Missed runs follow the declared misfire policy."""
    late = history.setup.late
    for line, message in entry.runs:
        nominal = message["nominal"]
        definition = entry.definition_at(nominal)
        if definition is None:
            continue
        # A run that was in time when it was sent off is not missed, however long it is on its way.
        sent_at = min(history.earliest(message), message.get("left", FOREVER))
        grace = grace_of(definition)
        # A beat looks at its clock, and then asks what is due. In a fault, the answer may take long.
        answer = history.setup.answer if history.is_faulty(nominal, sent_at) else 0
        if grace is not None and sent_at > nominal + grace + late + answer:
            what = f"{nominal} was sent {sent_at - nominal} ms late, and the grace is {grace} ms"
            yield entry.name, (line,), what
        if definition.call.get("misfire", "coalesce") == "coalesce":
            times = definition.nominal_times(nominal + 1, sent_at - late)
            if len(times) > 1 and definition.window.surely(sent_at):
                what = f"{nominal} was sent at {sent_at}, though {times[-1]} was due by then"
                yield entry.name, (line,), what


def grace_of(definition: Definition) -> int | None:
    """Return by how many ms a run may be late; None if by any."""
    grace: int | None = definition.call.get("grace")
    if grace is None and definition.call.get("misfire") == "skip":
        every = definition.rule.get("every", FOREVER)
        return min(5000, int(every) // 4)
    return grace


def late_runs_in_limits(history: History, entry: Entry) -> Iterator[Broken]:
    """Of the runs that an outage has made late, no more than the limit are sent at one moment."""
    bound = history.setup.slack + history.setup.late
    late: dict[int, list[tuple[int, Definition | None]]] = defaultdict(list)
    for line, message in entry.runs:
        if message["at"] > message["nominal"] + bound:
            late[message["at"]].append((line, entry.definition_at(message["nominal"])))
    for at, runs in late.items():
        definition = runs[0][1]
        if definition is None or any(other is not definition for _, other in runs):
            continue
        limit = definition.call.get("limit")
        if limit is not None and len(runs) > limit:
            what = f"{len(runs)} late runs were sent at {at}, and the limit is {limit}"
            yield entry.name, tuple(line for line, _ in runs), what


ENTRY_LAWS: tuple[Callable[[History, Entry], Iterator[Broken]], ...] = (
    sent_once,
    sent_or_left_out,
    one_id,
    first_run,
    max_runs,
    punctual,
    silent,
    in_order,
    old_rule,
    held_entries,
    lost_updates,
    misfires,
    late_runs_in_limits,
)


# -- senders ---------------------------------------------------------------------------------------


def goes_on(history: History) -> Iterator[Broken]:
    """After a fault with a bound ``back``, some message comes within that time."""
    for fault in history.faults:
        if "back" not in fault:
            continue
        took = time_to_next_message(history, fault["recovered"])
        if took > fault["back"]:
            what = f"the next message came after {took} ms, and {fault['back']} ms are allowed"
            yield str(fault.get("what", "a fault")), (), what


def time_to_next_message(history: History, instant: int) -> int:
    """Return the time in ms from an instant to the next message; FOREVER if none came."""
    index = bisect_left(history.arrivals, instant)
    if index == len(history.arrivals):
        return FOREVER
    return history.arrivals[index] - instant


def one_sender(history: History) -> Iterator[Broken]:
    """No message comes from a process that does not lead."""
    strays = stray_lines(history)
    if len(strays) > history.setup.strays:
        what = f"{len(strays)} messages of a process that did not lead"
        yield "all entries", tuple(strays[:20]), what


def stray_lines(history: History) -> list[int]:
    """Return the lines of messages from processes that did not lead any more.

    Such a message comes after one of a later leader, and its sender has begun no new term since.
    Where no terms are noted, there are no such messages.
    """
    terms = sorted(history.records("term"), key=lambda term: int(term["began"]))
    if not terms:
        return []
    strays = []
    term = -1
    for line, message in history.lines("sent"):
        sender = message["sender"]
        is_by_leader = term >= 0 and terms[term]["sender"] == sender
        if is_by_leader or message.get("by", "rule") != "rule":
            continue
        later = range(term + 1, len(terms))
        following = next((number for number in later if terms[number]["sender"] == sender), None)
        if following is None or message["at"] < terms[following]["began"]:
            strays.append(line)
        else:
            term = following
    return strays


def sent_again(history: History) -> Iterator[Broken]:
    """A message comes again only if it was among the last ones of its beat, at most a batch.

    A beat commits in the order in which it sends. So a message was committed if a later one of the
    same beat never came again. A stray message doubles one that the new leader has committed, so
    there may be as many of those as there are strays.
    """
    batch = history.setup.batch
    if batch is None:
        return
    messages = history.lines("sent")
    last = {(message["entry"], message["nominal"]): line for line, message in messages}
    committed: list[int] = []
    for _, group in groupby(messages, key=lambda item: int(item[1]["sender"])):
        tail: list[int] = []
        for line, message in group:
            if last[message["entry"], message["nominal"]] > line:
                tail.append(line)
            elif tail:
                committed += tail
                tail = []
        if len(tail) > batch:
            what = f"{len(tail)} messages came again, and {batch} may"
            yield "all entries", tuple(tail[:20]), what
    if len(committed) > len(stray_lines(history)):
        what = f"{len(committed)} messages came again although they were committed"
        yield "all entries", tuple(committed[:20]), what


def backfills(history: History) -> Iterator[Broken]:
    """A backfill sends each of its runs once, and says that it is done when all are sent."""
    if not history.is_exact:
        return
    sent: dict[str, list[Line]] = defaultdict(list)
    for line, message in history.lines("sent"):
        if "backfill" in message:
            sent[message["backfill"]].append((line, message))
    for line, backfill in history.lines("backfill"):
        messages = sent[backfill["backfill"]]
        about = f"{backfill['backfill']} of {backfill['entry']}"
        nominals = [message["nominal"] for _, message in messages]
        runs = set(nominals)
        lines = (line, *(message_line for message_line, _ in messages))
        if len(nominals) > len(runs):
            what = f"sent {len(nominals)} messages for {len(runs)} runs"
            yield about, lines, what
        if not all(backfill["start"] <= nominal <= backfill["end"] for nominal in nominals):
            yield about, lines, "sent runs outside of its span"
        if backfill["ended"] == "done" and len(runs) != backfill["sent"]:
            what = f"says that it has sent {backfill['sent']} runs, and {len(runs)} arrived"
            yield about, lines, what


SENDER_LAWS: tuple[Callable[[History], Iterator[Broken]], ...] = (
    goes_on,
    one_sender,
    sent_again,
    backfills,
)
