"""The drawing of the state machine in the docs is made from the table that the code runs on.

`python -m tests.architecture.test_drawing` makes it anew.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.core.job import FINISHED, Status
from holdfast.core.lifecycle import TRANSITIONS, Transition

PAGE = Path(__file__).parents[2] / "docs" / "state-machine.md"
BEGIN, END = "<!-- transitions -->", "<!-- /transitions -->"


def render() -> str:
    """The part of the page between the two marks: a diagram and a table."""
    return f"{BEGIN}\n\n{diagram()}\n\n{table()}\n\n{END}"


def diagram() -> str:
    lines = ["```mermaid", "stateDiagram-v2"]
    lines += ["    [*] --> pending: enqueue", "    [*] --> scheduled: enqueue (a future run_at)"]
    lines += [f"    {t.source} --> {t.target}: {label(t)}" for t in TRANSITIONS]
    lines += [f"    {status} --> [*]" for status in Status if status in FINISHED]
    return "\n".join([*lines, "```"])


def label(transition: Transition) -> str:
    # A colon or a semicolon would end the label.
    when = transition.when.replace(":", ",").replace(";", ",")
    return f"{transition.verb} ({when})" if when else transition.verb


def table() -> str:
    rows = [f"| {t.source} | {t.verb} | {t.target} | {t.when} |" for t in TRANSITIONS]
    return "\n".join(["| from | verb | to | when |", "|---|---|---|---|", *rows])


def with_drawing(page: str) -> str:
    """The page with the part between the marks made anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + render() + after


def test_the_page_shows_the_state_machine_as_it_is() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page.count(BEGIN) == page.count(END) == 1
    assert page == with_drawing(page), "make it anew: python -m tests.architecture.test_drawing"


def test_the_drawing_has_every_state_and_every_transition() -> None:
    drawn = diagram()
    assert all(f"    {t.source} --> {t.target}: {t.verb}" in drawn for t in TRANSITIONS)
    assert all(status in drawn for status in Status)


if __name__ == "__main__":
    PAGE.write_text(with_drawing(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
