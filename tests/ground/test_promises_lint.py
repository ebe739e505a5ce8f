"""The promises import nothing inner, and each of them names its sentence."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import redbeat_lite
from tests.support.cases import together

ROOT = Path(__file__).parents[2]
PROMISES = ROOT / "tests" / "promises"
HELPERS = ROOT / "tests" / "support"

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

#: Rooms of tests that know the inside of the package.
ROOMS = {f"tests.{room}" for room in ("faults", "harness", "once", "pipeline")}


def banned() -> set[str]:
    """The modules that the rule of ruff names."""
    settings = tomllib.loads((PROMISES / "ruff.toml").read_text())
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


def imports(text: str) -> set[str]:
    """The modules and names that a text imports, wherever it does so."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def is_inner(name: str) -> bool:
    """Whether a module, or a name of a module, belongs to the inside of the package."""
    package, _, path = name.partition(".")
    if package != "redbeat_lite" or not path or path.startswith("__"):
        return False
    if path in redbeat_lite.__all__ or name in PUBLIC:
        return False
    module, _, attribute = name.rpartition(".")
    return module not in PUBLIC or attribute.startswith("_") or name in banned()


def test_every_inner_module_is_banned() -> None:
    inner = set(modules(ROOT / "redbeat_lite")) - PUBLIC
    assert len(inner) > 40
    assert inner == {name for name in banned() if name.startswith("redbeat_lite.")}


def test_every_helper_that_knows_the_inside_is_banned() -> None:
    helpers = {f"tests.support.{path.stem}": imports(path.read_text()) for path in HELPERS.glob("*.py")}
    known = {name for name, imported in helpers.items() if any(map(is_inner, imported))}
    while True:
        through_others = {name for name, imported in helpers.items() if {module_of(each) for each in imported} & known}
        if through_others <= known:
            break
        known |= through_others
    assert known | ROOMS == {name for name in banned() if name.startswith("tests.")}


def module_of(name: str) -> str:
    """The helper of `tests.support` that a name of an import belongs to."""
    return ".".join(name.split(".")[:3])


def test_no_promise_imports_what_is_inner() -> None:
    for path in PROMISES.glob("*.py"):
        assert [name for name in imports(path.read_text()) if is_inner(name)] == [], path


@together(
    "statement",
    [
        "import redbeat_lite.store",
        "from redbeat_lite import store",
        "from redbeat_lite import _x",
        "from redbeat_lite.store.keys import Keys",
        "from redbeat_lite.web import pages",
        "from redbeat_lite.web import _x",
        "def look():\n    from redbeat_lite.store import keys",
        "if True:\n    import redbeat_lite._base.clock",
    ],
)
def test_an_inner_import_is_found_in_whatever_form(statement: str) -> None:
    assert any(map(is_inner, imports(statement)))


@together(
    "statement",
    [
        "import redbeat_lite",
        "from redbeat_lite import Schedules, every",
        "from redbeat_lite import testing",
        "from redbeat_lite.web import Site",
        "from redbeat_lite.__main__ import main",
        "from tests.support import waiting",
    ],
)
def test_an_import_of_a_user_is_allowed(statement: str) -> None:
    assert not any(map(is_inner, imports(statement)))


def test_every_promise_names_the_sentence_that_it_holds() -> None:
    nameless = [name for path in sorted(PROMISES.glob("test_*.py")) for name in without_docstring(path.read_text())]
    assert nameless == []


def test_a_test_without_a_sentence_is_found() -> None:
    text = 'class TestX:\n    def test_a(self):\n        """A."""\n    def test_b(self): ...\ndef test_c(): ...\n'
    assert without_docstring(text) == ["test_c", "test_b"]


def without_docstring(text: str) -> list[str]:
    """The tests in a text that have no docstring."""
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    tests = [function for function in functions if function.name.startswith("test_")]
    return [test.name for test in tests if not ast.get_docstring(test)]
