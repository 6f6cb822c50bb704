"""The reference names all there is: commands and options, settings, errors, events; and links lead there."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from holdfast import Queue, errors, events
from holdfast.cli.main import COMMANDS, load
from holdfast.config import SETTINGS
from holdfast.core.job import Job
from holdfast.jobs import errors as job_errors
from holdfast.store.candidates import MOST_IN_LINE
from holdfast.store.open import store_of
from holdfast.store.postgres import schema as postgres
from holdfast.store.sqlite.schema import MIGRATIONS
from tests.postgres import fresh_url

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs/reference"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOR_ALL = {"-h", "--help", "--database", "--json"}


def text_of(page: str) -> str:
    return (REFERENCE / page).read_text(encoding="utf-8")


def section_of(command: str) -> str:
    """The part of the reference that is about a command: under its name, its group's, or a shared heading."""
    for heading, body in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", text_of("queuectl.md"), re.M | re.S):
        names = heading.split(", ")
        if command in names or command.split()[0] in names:
            return str(body)
    raise AssertionError(f"queuectl.md has no section for {command}")


def options_of(command: str) -> set[str]:
    actions = load(command).parser(command)._actions
    return {
        text for action in actions if action.help != argparse.SUPPRESS for text in action.option_strings
    } - FOR_ALL


@pytest.mark.parametrize("command", COMMANDS)
def test_the_reference_has_every_command_with_its_options(command: str) -> None:
    section = section_of(command)
    missing = [option for option in options_of(command) if option not in section]
    assert missing == []


@pytest.mark.parametrize("command", COMMANDS)
def test_the_reference_invents_no_option(command: str) -> None:
    shared = {name for name in COMMANDS if section_of(name) == section_of(command)}
    known = set().union(*(options_of(name) for name in shared)) | FOR_ALL
    written = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", section_of(command)))
    assert written - known == set()


@pytest.mark.parametrize("name", SETTINGS)
def test_the_reference_has_every_setting_once(name: str) -> None:
    assert text_of("settings.md").count(f"| `{name}` |") == 1


def test_pages_about_groups_say_how_far_a_claim_looks() -> None:
    for page in ("how-to/limits.md", "explanation/what-may-start.md"):
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        assert f"among the first {MOST_IN_LINE:,} jobs in line" in text, page


def test_the_reference_has_every_field_of_a_job() -> None:
    _, _, section = text_of("python-api.md").partition("\n## Job\n")
    names = re.findall(r"`(\w+)`", section.partition("\n## ")[0])
    assert [name for name in Job.__struct_fields__ if name not in names] == []


def test_the_reference_invents_no_attribute_of_a_queue() -> None:
    _, _, section = text_of("python-api.md").partition("\n## Queue\n")
    tables = re.findall(
        r"\| (?:attribute|method) \| \|\n\|---\|---\|\n((?:\|.*\n)+)", section.partition("\n## ")[0]
    )
    cells = [row.split(" | ")[0] for table in tables for row in table.splitlines()]
    names = [name for cell in cells for name in re.findall(r"`(?:async |@)?(\w+)", cell)]
    assert len(names) > 60
    with Queue() as queue:
        assert [name for name in names if not hasattr(queue, name)] == []


def test_the_reference_has_every_error() -> None:
    page = text_of("errors.md")
    found = {**vars(errors), **vars(job_errors)}.values()
    kinds = [kind for kind in found if isinstance(kind, type) and issubclass(kind, BaseException)]
    assert [kind.__name__ for kind in kinds if f"{kind.__name__}" not in page] == []


def test_the_reference_has_every_event_with_its_fields() -> None:
    page = text_of("events.md")
    for kind in vars(events).values():
        if isinstance(kind, type) and issubclass(kind, events.Event) and hasattr(kind, "name"):
            row = re.search(rf"^\| `{kind.name}` \| `{kind.__name__}` \| \w+ \| (.*?) \|", page, re.M)
            assert row is not None, kind.name
            assert set(row[1].split(", ")) == set(kind.__struct_fields__), kind.name


def test_the_reference_has_every_version_of_the_schema() -> None:
    rows = re.findall(r"^\| (\d+) \|", text_of("schema.md"), re.M)
    numbers = {migration.number for migration in (*MIGRATIONS, *postgres.MIGRATIONS)}
    assert rows == [*map(str, sorted(numbers))]


def test_the_reference_has_every_table_of_both_engines() -> None:
    page = text_of("schema.md")
    statements = [statement for m in (*MIGRATIONS, *postgres.MIGRATIONS) for statement in m.statements]
    made = re.findall(r"CREATE (?:TABLE|VIEW) (holdfast_\w+)", "\n".join(statements))
    assert len(set(made)) > 12
    assert [name for name in sorted(set(made)) if name not in page] == []


@pytest.mark.postgres
def test_the_reference_has_every_figure_of_a_database(tmp_path: Path) -> None:
    page = text_of("http-api.md")
    with fresh_url() as server, Queue(server) as shared, Queue(f"sqlite:///{tmp_path}/queue.db") as local:
        names = store_of(shared).measure().keys() | store_of(local).measure().keys()
    assert [name for name in sorted(names) if f"`holdfast_store_{name}`" not in page] == []


def slug(heading: str) -> str:
    """The anchor that a heading gets where the pages are shown."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_between_pages_leads_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", text):
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.M)
            assert anchor in {slug(heading) for heading in headings}, f"{target}#{anchor}"
