"""What `make bench ARGS=--write` makes of a run: the generated parts of docs/performance.md and its plots."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.bench import Note
from benchmarks.figures import Comparison, Entry
from benchmarks.report import Report, write

DOCS = Path(__file__).parents[2] / "docs"
SECTIONS = ("SQLite", "PostgreSQL", "Redis", "Growth")
GENERATED = re.compile(r"<!-- bench:(\w+) -->.*?<!-- /bench -->", re.DOTALL)


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    shutil.copy(DOCS / "performance.md", tmp_path)
    return tmp_path


def comparison(section: str, *, less_is_better: bool = False) -> Comparison:
    made = Comparison(
        name=f"enqueue on {section}",
        section=section,
        unit="ms" if less_is_better else "jobs/s",
        entries=[Entry("Holdfast", [90, 100, 120]), Entry("a & b", [45, 50, 40]), Entry("late", [200])],
        less_is_better=less_is_better,
    )
    made.expect_ratio("a & b", 1.5)
    made.expect_ratio("absent", 1.5)
    return made


def report(*sections: str) -> Report:
    return Report(
        "Python 3, 2 cores",
        [comparison(section) for section in sections],
        [
            Note("SQLite", "a & b", "1.0", "synchronous=FULL", "its defaults"),
            Note("SQLite", "late", "1.0", "synchronous=NORMAL", "its defaults"),
        ],
    )


def test_every_generated_part_of_the_page_is_replaced_and_the_prose_is_kept(docs: Path) -> None:
    before = (docs / "performance.md").read_text("utf-8")
    write(report(*SECTIONS), docs)
    after = (docs / "performance.md").read_text("utf-8")
    assert GENERATED.sub("", after) == GENERATED.sub("", before)
    assert GENERATED.findall(after) == GENERATED.findall(before)
    assert not set(GENERATED.finditer(before)) & set(GENERATED.finditer(after))
    assert "fills in this section" not in after
    assert "| enqueue on SQLite | **Holdfast** | 100 jobs/s | 90.0 to 120 |  |" in after
    assert "|  | a & b | 45.0 jobs/s | 40.0 to 50.0 | 2.00× |" in after
    assert "| enqueue on Redis | 2.00 × a & b, expected at least 1.5 × | met |" in after
    assert "absent" not in after


def test_a_queue_that_can_lose_what_it_accepted_is_marked(docs: Path) -> None:
    page, plot = write(report("SQLite"), docs)
    assert "|  | late † | 200 jobs/s |" in page.read_text("utf-8")
    assert "a & b †" not in page.read_text("utf-8")
    words = list(ElementTree.fromstring(plot.read_text("utf-8")).itertext())
    assert "late †" in words
    assert "† A power cut can lose jobs that these queues have accepted." in words


def test_a_part_of_which_nothing_was_measured_is_kept(docs: Path) -> None:
    before = (docs / "performance.md").read_text("utf-8")
    write(report("SQLite"), docs)
    after = (docs / "performance.md").read_text("utf-8")
    assert before.partition("<!-- bench:postgresql -->")[2].partition("<!-- /bench -->")[0] in after


def test_the_page_shows_each_plot_that_is_written(docs: Path) -> None:
    page, *plots = write(report(*SECTIONS), docs)
    assert len(plots) == len(SECTIONS)
    for path in plots:
        assert f"({path.relative_to(docs)})" in page.read_text("utf-8")


def test_a_plot_names_every_queue_and_unit_and_follows_the_colour_scheme(docs: Path) -> None:
    _, plot = write(report("SQLite"), docs)
    text = plot.read_text("utf-8")
    words = "".join(ElementTree.fromstring(text).itertext())
    for word in ("enqueue on SQLite", "jobs/s, more is better", "Holdfast", "a & b", "late", "200"):
        assert word in words
    assert "prefers-color-scheme: dark" in text


def test_an_expectation_of_less_is_met_by_less() -> None:
    [met] = comparison("SQLite").expectations
    [missed] = comparison("SQLite", less_is_better=True).expectations
    assert met.met
    assert not missed.met
    assert "at most" in missed.words


def test_a_ratio_is_the_median_of_the_rounds_and_of_the_medians_where_rounds_are_missing() -> None:
    made = comparison("SQLite")
    assert made.ratio("a & b") == 2.0
    assert made.ratio("late") == 0.5
    assert made.ratio("absent") is None
