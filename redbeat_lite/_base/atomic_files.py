"""Atomic writes of files."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path


def is_stream(path: Path) -> bool:
    """Return whether a path is a pipe or a device that belongs to this user or to root.

    A pipe of another user does not count, because that user would read the text. Links count only
    in ``/dev`` and ``/proc``, such as ``/dev/fd/1``, where no other user can make one.
    """
    directory = path.parent.resolve()
    if directory == Path("/dev") or directory.is_relative_to("/proc"):
        return path.exists()
    try:
        status = path.lstat()
    except OSError:
        return False
    mode = status.st_mode
    is_file_or_link = stat.S_ISREG(mode) or stat.S_ISLNK(mode) or stat.S_ISDIR(mode)
    return not is_file_or_link and status.st_uid in (0, os.geteuid())


def write_whole(path: Path, texts: Iterable[str], mode: int) -> None:
    """Write a file atomically: a reader gets either the old file or all of the texts.

    A link at the path is replaced, and not followed, because another user of the directory may have
    put it there. The umask reduces the rights of ``mode``.

    Raises:
        OSError: the file cannot be written, or the path is a stream, which a file would replace.
            Nothing was changed.
    """
    if is_stream(path):
        raise OSError(errno.EINVAL, "a pipe or a device, and no file", str(path))
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)  # A killed process with the same id may have left one.
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        with open(file, "w", encoding="utf-8") as out:
            out.writelines(texts)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
