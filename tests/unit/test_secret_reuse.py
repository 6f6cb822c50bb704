"""Secrets of an edited payload: they are kept as long as they can't be sent elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.redact import REDACTED, redact
from holdfast.core.secret_reuse import restore_secrets
from holdfast.errors import InvalidPayload

HOOK = {
    "url": "https://api.example.com:8443/hook?x=1",
    "method": "POST",
    "headers": {"Authorization": "Bearer hunter2", "Accept": "*/*"},
    "body": {"user": "ada", "amount": 7},
}


def edited(**changes: Any) -> dict[str, Any]:
    """The payload as it is shown, with these fields changed."""
    return {**redact(HOOK), **changes}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"url": "https://api.example.com:8443/other?y=2"},
        {"url": "HTTPS://API.example.com:8443"},
        {"url": "https://api.example.com:8443/a b/é"},
        {"method": "PUT", "body": {"user": "grace", "amount": 8, "note": "at 10:30, see page 3.14"}},
        {"timeout": 5},
        {"headers": {"Authorization": REDACTED, "X-Trace": "1"}},
    ],
    ids=str,
)
def test_secret_is_kept_where_it_goes_to_the_same_place(changes: dict[str, Any]) -> None:
    assert restore_secrets(edited(**changes), HOOK)["headers"]["Authorization"] == "Bearer hunter2"


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("url", "https://evil.example/hook"),
        ("url", "https://api.example.com/hook?x=1"),
        ("url", "http://api.example.com:8443/hook?x=1"),
        ("url", "https://api.example.com:8443@evil.example/"),
        ("url", "https://api.example.com:8443\\@evil.example/"),
        ("url", "https://api.example.com:8443\t.evil.example/"),
        ("url", "https://api.example.com:8443\n@evil.example/"),
        ("url", "https:evil.example/?https://api.example.com:8443"),
        ("url", "https://api.example.com:8443/hook?x=https://evil.example"),
        ("url", "//evil.example/"),
        ("url", "evil.example/hook"),
        ("url", None),
        ("url", ["https://evil.example/"]),
        ("baseURL", "evil"),
        ("smtphost", "evil"),
        ("http_proxy", "evil"),
        ("Port", 25),
        ("servers", ["evil"]),
        ("endpoint", {"name": "evil"}),
        ("command", "env"),
        ("note", "evil.example"),
        ("note", "198.51.100.7:25"),
        ("note", "[2001:db8::7]:25"),
        ("note", "evil:25"),
        ("note", "go to https://evil.example"),
    ],
)
def test_secret_is_refused_where_it_might_be_sent_elsewhere(where: str, value: Any) -> None:
    with pytest.raises(InvalidPayload, match=rf"^payload\.{where}.*enter the secret again$") as caught:
        restore_secrets(edited(**{where: value}), HOOK)
    assert "hunter2" not in str(caught.value)


def test_place_that_is_taken_out_is_a_change() -> None:
    with pytest.raises(InvalidPayload, match=r"^payload\.url"):
        restore_secrets({"headers": redact(HOOK)["headers"]}, HOOK)


def test_secret_in_a_list_is_held_to_the_same() -> None:
    stored = {"host": "old", "accounts": [{"user": "a", "password": "hunter2"}]}
    assert restore_secrets(redact(stored), stored) == stored
    with pytest.raises(InvalidPayload, match=r"^payload\.host"):
        restore_secrets({**redact(stored), "host": "new"}, stored)


def test_place_may_change_where_no_secret_is_restored() -> None:
    new = {"url": "https://elsewhere.example/", "headers": {"Authorization": "Bearer new"}}
    assert restore_secrets(new, HOOK) == new
    assert restore_secrets({"url": "https://elsewhere.example/"}, HOOK) == {
        "url": "https://elsewhere.example/"
    }


def test_addresses_of_people_may_change() -> None:
    stored = {"to": "a@b.c", "password": "hunter2"}
    assert restore_secrets({"to": "x@y.z", "password": REDACTED}, stored)["password"] == "hunter2"
