"""The lint rule of the promises names everything that they must not import."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

#: Modules that users import, or name on a command line.
PUBLIC = {
    "redbeat_lite.events",
    "redbeat_lite.operate",
    "redbeat_lite.pipeline",
    "redbeat_lite.pytest_plugin",
    "redbeat_lite.testing",
    "redbeat_lite.web",
    "redbeat_lite.web.django",
    "redbeat_lite.web.users",
    "redbeat_lite.worker",
}


def banned() -> set[str]:
    """The modules that the rule names."""
    settings = tomllib.loads((ROOT / "tests" / "promises" / "ruff.toml").read_text())
    return {*settings["lint"]["flake8-tidy-imports"]["banned-api"]}


def modules(folder: Path) -> Iterator[str]:
    """The modules in a folder, and those in its public packages."""
    for path in sorted(folder.iterdir()):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        is_module = path.suffix == ".py" or (path / "__init__.py").exists()
        if not is_module or path.name.startswith("__"):
            continue
        yield name
        if name in PUBLIC and path.is_dir():
            yield from modules(path)


def test_every_inner_module_is_banned() -> None:
    inner = set(modules(ROOT / "redbeat_lite")) - PUBLIC
    assert len(inner) > 50
    assert inner == {name for name in banned() if name.startswith("redbeat_lite.")}


def test_every_helper_that_knows_the_inside_is_banned() -> None:
    knows = re.compile(r"^(?:from|import) redbeat_lite\.\w", re.MULTILINE)
    helpers = (path for path in (ROOT / "tests" / "support").glob("*.py") if knows.search(path.read_text()))
    rooms = {f"tests.{room}" for room in ("faults", "harness", "once", "pipeline")}
    assert {f"tests.support.{path.stem}" for path in helpers} | rooms == {
        name for name in banned() if name.startswith("tests.")
    }
