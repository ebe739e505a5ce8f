"""Lines of a crontab file (man 5 crontab) as entries.

A line has a command where an entry has a task, so somebody has to say which task stands for which command: one task
that is given the command as its argument, or a mapping. A line that neither covers is left out, and said so.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from datetime import tzinfo
from pathlib import Path
from typing import Any

from ...entries.fields import is_name
from ...errors import ConfigurationError, InvalidEntry
from ...schedules.zones import zone_of
from ...settings import MAX_NAME
from .source import Found, Left, Source
from .zoned_crontab import zoned_cron_line

_SETTING = re.compile(r"""(['"]?)(\w+)\1\s*=\s*(.*)""", re.ASCII)
#: Files whose lines name a user between the times and the command.
_SYSTEM = re.compile(r"(.*/)?etc/(crontab|cron\.d/[^/]+)")


class CrontabFile(Source):
    """The entries of one crontab file. Cron keeps no record of runs: each begins with its next time.

    Parameters:
        path: the file, as ``crontab -l`` prints it, or ``/etc/crontab``, or one of ``/etc/cron.d``.
        zone: where its times are read; a ``CRON_TZ`` line in the file takes precedence for the lines after it.
        task: a task that is given the command of a line as its one argument.
        commands: a JSON file; an object from command to the name of a task, or to the fields of an entry, in which
            ``name`` may be one of them. It takes precedence over ``task``.
        user_column: whether a user stands before each command; by default told by the path.

    Raises:
        ConfigurationError: a file cannot be read.
    """

    title = "crontab-file"

    def __init__(
        self,
        path: Path,
        zone: tzinfo,
        *,
        task: str | None = None,
        commands: Path | None = None,
        user_column: bool | None = None,
    ) -> None:
        self._zone = zone
        self._task = task
        self._commands = {} if commands is None else _mapping(commands)
        self._user_column = bool(_SYSTEM.fullmatch(str(path.absolute()))) if user_column is None else user_column
        self._text = _read(path)
        users = ", with a user column" if self._user_column else ""
        self.where = f"{path}{users}, times in {zone}"

    def read(self) -> Iterator[Found | Left]:
        """Every line that is neither empty nor a comment nor a setting."""
        zone, taken = self._zone, Counter[str]()
        for number, text in enumerate(map(str.strip, self._text.splitlines()), 1):
            if setting := _SETTING.match(text):
                if setting[2] == "CRON_TZ":
                    zone = zone_of(setting[3].strip("'\""), f"line {number}: CRON_TZ")
            elif text and not text.startswith("#"):
                found = self._entry(number, text, zone)
                taken[found.name] += 1
                if isinstance(found, Found) and taken[found.name] > 1:  # cron may run one command by several lines
                    found = found._replace(name=f"{found.name[: MAX_NAME - 10]} ({taken[found.name]})")
                yield found

    def _entry(self, number: int, text: str, zone: tzinfo) -> Found | Left:
        times = 1 if text.startswith("@") else 5
        words = text.split(None, times + self._user_column)
        if len(words) < times + self._user_column + 1:
            wanted = f"{times} field{'s' * (times > 1)} of time{', a user' * self._user_column} and a command"
            return Left(f"line {number}", f"expected {wanted}, got {text!r}")
        where = f"line {number}: {words[-1]}"[:MAX_NAME]
        # What follows a percent sign is the command's input, which a task has no place for.
        command, percent, _ = re.sub(r"\\%", "\0", words[-1]).partition("%")
        command = command.replace("\0", "%").strip()
        if percent:
            return Left(where, "its command reads what follows the % as its input; write that into a task")
        by_task = None if self._task is None else {"task": self._task, "args": [command]}
        target = self._commands.get(command, by_task)
        if target is None:
            hint = "name a task that takes commands with --task, or the task of this command with --commands"
            return Left(where, f"a command is no task; {hint}")
        try:
            schedule = zoned_cron_line(" ".join(words[:times]), zone)
        except InvalidEntry as exc:
            return Left(where, str(exc))
        fields = {"description": f"crontab: {text}", **target, "schedule": schedule}
        name = fields.pop("name", command)
        return Found(name if is_name(name) else where, fields)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as exc:
        raise ConfigurationError(f"crontab-file: cannot read {path}: {exc.strerror}") from None


def _mapping(path: Path) -> dict[str, dict[str, Any]]:
    """The fields of an entry for each command."""
    text = _read(path)
    try:
        given = json.loads(text)
    except ValueError as exc:
        raise ConfigurationError(f"crontab-file: {path} is no JSON: {exc}") from None
    if not isinstance(given, dict):
        raise ConfigurationError(f"crontab-file: {path}: expected an object from commands to tasks")
    for command, target in given.items():
        if not isinstance(target, (str, dict)) or (isinstance(target, dict) and "schedule" in target):
            expected = "the name of a task, or the fields of an entry without a schedule"
            raise ConfigurationError(f"crontab-file: {path}: {command!r}: expected {expected}, got {target!r}")
    return {command: {"task": target} if isinstance(target, str) else target for command, target in given.items()}
