"""The grouping key of an error: what differs from one time to the next is not in it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.error_group import LONGEST, NO_MESSAGE, error_group

UUID = "0190d3c1-7a2e-7c3b-8f00-1234567890ab"


@pytest.mark.parametrize(
    ("error", "group"),
    [
        ("ValueError: no such user", "ValueError: no such user"),
        ("KeyError: 42", "KeyError: #"),
        ("timed out after 30.5 s", "timed out after # s"),
        ("balance is -12, limit +3", "balance is #, limit #"),
        ("1000000.0 of 12345678901234567890", "# of #"),
        ("1,234,567 of 1_000_000 bytes at 1.5e-10", "# of # bytes at #"),
        ("user-42 of shard7", "user-# of shard#"),
        ("from 3-5 to 10:32:01", "from #-# to #:#:#"),
        (f"job {UUID} is gone", "job # is gone"),
        (f"job {UUID.upper()} is gone", "job # is gone"),
        ("<object at 0x7F3A>", "<object at #>"),
        ("commit e3ba642 is not 9f86d081884c7d659a2feaa0c55ad015", "commit # is not #"),
        ("a defaced facade", "a defaced facade"),
        ("\n\n  first line \t said  this\nsecond line 7", "first line said this"),
        ("a\0b\x1b[31m", "a b [#m"),
        ("١٢٣ Arabic", "# Arabic"),
        ("half a pair: \ud800", "half a pair: ?"),
        ("", NO_MESSAGE),
        (" \n\t\r\n \0", NO_MESSAGE),
        (NO_MESSAGE, NO_MESSAGE),
    ],
    ids=ascii,
)
def test_what_stays_the_same_is_kept_and_the_rest_is_one_mark(error: str, group: str) -> None:
    assert error_group(error) == group


def test_key_is_cut() -> None:
    assert error_group("x" * 1000) == "x" * LONGEST
    assert error_group("x" * (LONGEST - 1) + " y") == "x" * (LONGEST - 1)


def test_long_line_of_numbers_takes_no_time() -> None:
    assert error_group("7 " * 5_000_000) == ("# " * 100).strip()
    assert error_group("a7" * 5_000_000) == "#"
    assert error_group("z7" * 5_000_000) == "z#" * (LONGEST // 2)
    assert error_group("-" * 5_000_000) == "-" * LONGEST


TELLING = st.text(st.sampled_from("0123456789abcdefxX-+.,_ \n\t\0ßé²٣gz#:"), max_size=300)


@given(TELLING | st.text(max_size=300))
def test_key_of_a_key_is_the_key_itself(error: str) -> None:
    group = error_group(error)
    assert error_group(group) == group


@given(TELLING | st.text(st.characters(), max_size=300))
def test_key_is_one_short_line_without_digits_that_can_be_stored(error: str) -> None:
    group = error_group(error)
    assert 0 < len(group) <= LONGEST
    assert group == " ".join(group.split())
    assert "\0" not in group
    assert not any(character.isdecimal() for character in group)
    assert group.encode()


@given(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.uuids())
def test_same_mistake_with_other_values_has_the_same_key(number: int, amount: float, id: object) -> None:
    message = "row {}: amount {} of {} is wrong"
    assert error_group(message.format(number, amount, id)) == error_group(message.format(1, 2, UUID))
