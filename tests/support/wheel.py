"""The package as its users get it: a wheel, installed into an empty environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.processes import ROOT, Process

#: What a checkout holds besides its sources; building in the checkout itself would add to it.
_NOT_SOURCES = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "dump.rdb")


class Installation:
    """An environment of its own and a directory to work in, as somebody has who installed the wheel.

    Parameters:
        directory: where all of it goes.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
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
        self.pip("pip install '.[redis]'")
        self.run("pip", "install", "redbeat-lite[embedded]")  # it is there, so that only the extra is looked for
        return self

    def pip(self, line: str) -> None:
        """Run a line for the shell that installs something from the sources; the same line again changes nothing."""
        if line not in self._installed:
            _run("sh", "-ec", f"exec {line}", cwd=self.sources, env=self.env)
            self._installed.add(line)

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


def _run(*command: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, f"{' '.join(command)} exited with {done.returncode}:\n{done.stdout}"
    return done.stdout
