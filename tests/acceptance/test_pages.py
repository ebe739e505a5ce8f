"""The documentation is complete where it claims to be, and leads nowhere that is not."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import redbeat_lite
from redbeat_lite import Entry
from redbeat_lite._base import json_values
from redbeat_lite._base.fields import fields_of
from redbeat_lite.entries import state
from redbeat_lite.entries.model import FIELDS
from redbeat_lite.settings import Settings
from tests.support.cases import together
from tests.support.pages import DOCS, document, documentation

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *documentation(), *sorted(ROOT.glob("examples/**/*.md"))]
REFERENCE = "".join(document(f"{page}.md").read_text() for page in ("api", "fields", "settings", "logs"))


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@together("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!\w+:)([^)#]*)#?([^)]*)\)", page.read_text()):
        path = page.parent / target if target else page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), f"{target}#{anchor}"


def test_every_folder_of_tests_in_the_guide_for_contributors_exists() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = text.partition("\n## Tests\n")[2].partition("\n- ")[0]
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    # The first cell says "tests/" once, before the first of its names.
    table_names = {name.removeprefix("tests/") for cell in cells for name in re.findall(r"`([\w/]+)`", cell)}
    names = table_names | set(re.findall(r"\btests/(\w+)(?=[/`])", text))
    assert len(names) > 15
    assert [name for name in sorted(names) if not (ROOT / "tests" / name).is_dir()] == []


@together(("name", "default"), [(name, field.default) for name, field in fields_of(Settings).items()])
def test_every_setting_is_in_the_reference_with_its_default(name: str, default: object) -> None:
    by_the_app = {"url": "the broker's URL", "owner": "the app's name", "redis_options": "`{}`"}
    shown = by_the_app.get(name) or "`" + repr(default).replace("'", '"') + "`"
    assert f"| `redbeat_lite_{name}` | {shown} |" in REFERENCE


@together("name", sorted({*redbeat_lite.__all__, *FIELDS} - {"__version__", "Scheduler"}))
def test_every_public_name_and_field_is_in_the_reference(name: str) -> None:
    assert re.search(rf"(`|redbeat_lite\.){name}\b", REFERENCE)


def test_every_form_of_a_rule_in_the_reference_is_one() -> None:
    table = document("fields.md").read_text().partition("\n## Forms of a rule\n")[2].partition("\n## ")[0]
    forms = [json.loads(form) for form in re.findall(r"^\| `(\{.*?\})` \|", table, re.MULTILINE) if "…" not in form]
    assert len(forms) == 8
    for form in forms:
        assert Entry("name", "task", form).as_dict()["schedule"].keys() == form.keys()
    [option] = re.findall(r"--schedule '(.*?)'", document("cli.md").read_text())
    assert json.loads(option) in forms


def test_the_largest_entries_are_as_the_page_about_security_says() -> None:
    definition, beside = json_values.MAX_BYTES // 1024, state.MAX_BYTES // 1024
    assert f"a definition over {definition} KiB, a state over {beside} KiB" in document("security.md").read_text()


def lines_of_the_beat() -> Iterator[str]:
    """What the beat logs, from INFO up, as far as it is fixed text."""
    for path in sorted((ROOT / "redbeat_lite").rglob("*.py")):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if '"beat: ' in text else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                words = node.args[0]
                logs = node.func.attr in ("info", "warning", "error", "exception")
                if logs and isinstance(words, ast.Constant) and str(words.value).startswith("beat: "):
                    yield str(words.value)


def test_every_line_that_the_beat_logs_is_in_the_reference() -> None:
    def fixed(line: str) -> str:
        return max(re.split(r"%[\d.]*\w|\n", line.removeprefix("beat: ")), key=len).strip(" ,;:()")

    lines = {*lines_of_the_beat()}
    assert len(lines) > 30
    assert not [line for line in lines if fixed(line) not in REFERENCE]


def test_the_version_is_that_of_the_first_section_of_the_changelog() -> None:
    first = re.search(r"^## (\S+) \((unreleased|\d{4}-\d\d-\d\d)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert first is not None
    assert first[1] == redbeat_lite.__version__


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def length(page: Path) -> int:
    """Words of a page, of which the bars of a table are none."""
    return len(re.findall(r"\S*\w\S*", prose(page)))


def test_no_page_is_longer_than_a_reader_is_patient() -> None:
    words = {page.stem: length(page) for page in documentation()}
    assert not {page: count for page, count in words.items() if count > 1800}
    assert length(ROOT / "README.md") + words["quickstart"] <= 2500


def test_no_sentence_stands_twice() -> None:
    places: dict[str, set[str]] = {}
    for page in (ROOT / "README.md", *documentation()):
        text = re.sub(r"^\|.*$", "", re.sub(r"\]\([^)]*\)", "]", prose(page)), flags=re.MULTILINE)
        for sentence in re.split(r"(?<=[.!?:])\s+|\n\n|\n- ", text):
            if len(words := re.findall(r"[\w'-]+", sentence.lower())) >= 8:
                places.setdefault(" ".join(words), set()).add(page.name)
    assert not {sentence: pages for sentence, pages in places.items() if len(pages) > 1}


def test_the_front_names_each_page_by_its_title_once_in_its_group() -> None:
    front = (DOCS / "index.md").read_text()
    titles = {str(page.relative_to(DOCS)): page.read_text().partition("\n")[0][2:] for page in documentation()}
    lists = [*re.finditer(r"^## (.*)\n\n((?:- .*\n)+)", front, re.MULTILINE)]
    groups = {found[1]: re.findall(r"^- \[(.*?)\]\((.*?)\)", found[2], re.MULTILINE) for found in lists}
    trees = re.finditer(r":caption: (.*)\n\n((?:[\w/-]+\n)+)", front)
    tree = {found[1]: [f"{page}.md" for page in found[2].split()] for found in trees}
    assert {group: [page for _, page in pages] for group, pages in groups.items()} == tree
    assert all(titles[page] == title for pages in groups.values() for title, page in pages)
    assert sorted(page for pages in tree.values() for page in pages) == sorted({*titles} - {"index.md"})


def test_each_group_of_the_front_is_a_folder() -> None:
    front = (DOCS / "index.md").read_text()
    folders = [{*re.findall(r"^(\w+)/", tree, re.MULTILINE)} for tree in front.split(":caption: ")[1:]]
    assert folders == [{"learn"}, {"do"}, {"understand"}, {"lookup"}]
