"""Settings are kept by name and type, and read by every handle."""

from __future__ import annotations

import pytest

from holdfast.config import Value
from holdfast.store.protocol import Store


def test_new_queue_has_no_stored_settings(store: Store) -> None:
    assert store.get_settings() == {}


@pytest.mark.parametrize("value", [7, 0.25, "linear", None, 2**40, "žluť 😀"])
def test_value_is_kept_as_it_was(store: Store, other: Store, value: Value) -> None:
    store.set_setting("max_attempts", "", value)
    assert other.get_settings() == {("max_attempts", ""): value}


def test_setting_again_replaces(store: Store) -> None:
    store.set_setting("max_attempts", "", 3)
    store.set_setting("max_attempts", "", 4)
    assert store.get_settings() == {("max_attempts", ""): 4}


def test_each_type_has_its_own_value(store: Store) -> None:
    store.set_setting("max_attempts", "", 3)
    store.set_setting("max_attempts", "email", 4)
    store.set_setting("job_timeout", "email", None)
    assert store.get_settings() == {
        ("max_attempts", ""): 3,
        ("max_attempts", "email"): 4,
        ("job_timeout", "email"): None,
    }


def test_unset_value_is_gone(store: Store) -> None:
    store.set_setting("max_attempts", "", 3)
    store.set_setting("max_attempts", "email", 4)
    assert store.unset_setting("max_attempts", "email")
    assert store.get_settings() == {("max_attempts", ""): 3}


def test_unsetting_what_was_not_set_says_so(store: Store) -> None:
    store.set_setting("max_attempts", "email", 4)
    assert not store.unset_setting("max_attempts", "")
    assert not store.unset_setting("job_timeout", "email")
    assert store.get_settings() == {("max_attempts", "email"): 4}
