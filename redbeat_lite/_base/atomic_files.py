"""Atomic writes of files."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path


def write_whole(path: Path, texts: Iterable[str], mode: int) -> None:
    """Write a file atomically: a reader gets either the old file or all of the texts.

    A link at the path is replaced, and not followed, because another user of the directory may have
    put it there. The umask reduces the rights of ``mode``.

    Raises:
        OSError: the file cannot be written, or the path is a stream, which a file would replace.
            Nothing was changed.
    """
    directory = path.parent.resolve()
    is_special = path.exists() and not path.is_file() and not path.is_dir()
    # A link such as /dev/fd/1 may lead to a file, but nothing can be put in its place.
    if is_special or directory == Path("/dev") or directory.is_relative_to("/proc"):
        raise OSError(errno.EINVAL, "a pipe or a device, and no file", str(path))
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)  # A killed process with this id may have left it.
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        with open(file, "w", encoding="utf-8") as out:
            out.writelines(texts)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
