"""Foreign values in messages: short, printable, on one line."""

from __future__ import annotations

import pytest

from holdfast.text import one_line, shown


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("plain ü 😀", "plain ü 😀"),
        ("a\nb\r\n", r"a\nb\r\n"),
        ("\x1b[31m", r"\x1b[31m"),
        ("\u2028", r"\u2028"),
        ("\ud800", r"\ud800"),
    ],
)
def test_what_cannot_be_printed_is_escaped(text: str, line: str) -> None:
    assert one_line(text) == line


def test_value_is_cut_to_what_fits_into_a_message() -> None:
    assert shown("x" * 78) == repr("x" * 78)
    assert shown("x" * 79) == "'" + "x" * 76 + "…"
    assert len(shown(list(range(1000)))) == 78


def test_value_that_cannot_be_shown_is_named_by_its_type() -> None:
    class Shy:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    assert shown(Shy()) == "a value of type Shy"
    assert shown(10**5000) == "a value of type int"
