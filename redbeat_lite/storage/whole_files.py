"""Files that are written as a whole. Needs nothing but Python itself."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path


def is_stream(path: Path) -> bool:
    """Whether what is written to a path goes elsewhere: a pipe or a device of our own or of the machine's.

    In ``/dev`` and ``/proc``, where nobody else puts links, they count as what they lead to: ``/dev/fd/1`` is one.
    Another user's pipe is none, for whoever put it where we write would read all of it.
    """
    directory = path.parent.resolve()
    if directory == Path("/dev") or directory.is_relative_to("/proc"):
        return path.exists()
    try:
        found = path.lstat()
    except OSError:
        return False
    return not any(is_kind(found.st_mode) for is_kind in _REPLACED) and found.st_uid in (0, os.geteuid())


_REPLACED = (stat.S_ISREG, stat.S_ISLNK, stat.S_ISDIR)


def write_whole(path: Path, texts: Iterable[str], mode: int) -> None:
    """Write a file, in one step for those who read it: they find all of the texts, or what was there before.

    No link is followed, neither at the path, which is replaced, nor at the draft beside it, which somebody may have put
    there in a directory that he shares with us. The umask takes from the rights of ``mode``.

    Raises:
        OSError: it cannot be written; nothing was changed then. A stream cannot: it would be replaced by a file.
    """
    if is_stream(path):
        raise OSError(errno.EINVAL, "a pipe or a device, and no file", str(path))
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)  # left by a process of this id that was killed
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        with open(file, "w", encoding="utf-8") as out:
            out.writelines(texts)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
