"""Compiled templates that all sites of a run share. Each site compiles its own otherwise, which takes four fifths of
the time of a test."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from jinja2 import Environment, FileSystemBytecodeCache

from redbeat_lite.web import rendering

#: Environment variable with the directory of the compiled templates.
VARIABLE = "TESTS_TEMPLATES"


def share(directory: Path) -> None:
    """Let the sites of this process, and of those that it starts, keep compiled templates in this directory."""
    directory.mkdir(exist_ok=True)
    os.environ[VARIABLE] = str(directory)
    share_as_told()


def share_as_told() -> None:
    """Do what :func:`share` of the process that started this one asks for."""
    if directory := os.environ.get(VARIABLE):
        rendering.Environment = partial(Environment, bytecode_cache=FileSystemBytecodeCache(directory))  # type: ignore[misc, assignment]
