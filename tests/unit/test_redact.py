"""Secrets in payloads are told by the names of their fields: shown as a marker, and kept when edited."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.redact import REDACTED, is_secret, redact, restore
from holdfast.errors import InvalidPayload

SECRET = [
    "password",
    "Password",
    "PASSWORD",
    "passwd",
    "pwd",
    "pass",
    "passphrase",
    "passcode",
    "db_password",
    "dbPassword",
    "DB_PASSWORD",
    "db-password",
    "db.password",
    "smtp password",
    "passwordHash",
    "DBPassword",
    "SMTPPassword",
    "password1",
    "newPassword2",
    "userpassword",
    "secret",
    "secrets",
    "client_secret",
    "clientSecret",
    "clientsecret",
    "token",
    "tokens",
    "access_token",
    "accessToken",
    "accesstoken",
    "refresh-token",
    "APIToken",
    "IDToken",
    "token2",
    "authorization",
    "Authorisation",
    "Proxy-Authorization",
    "HTTPAuthorization",
    "credential",
    "awsCredentials",
    "cookie",
    "Set-Cookie",
    "api_key",
    "apiKey",
    "apikey",
    "APIKEY",
    "APIKey",
    "X-Api-Key",
    "apiKeys",
    "aws_access_key_id",
    "AWSSecretAccessKey",
    "private_key",
    "privateKeyPem",
    "signing_key",
    "encryptionKey",
    "bearer",
    "jwt",
    "otp",
    "pin",
    "cvv",
    "ssn",
    "dbpass",
    "auth",
    "basic_auth",
    "X-Auth",
    "pw",
    "smtp_pw",
    "creds",
    "session",
    "sessionid",
    "session_id",
    "ssh_key",
    "account_key",
    "AccountKey",
    "master_key",
    "client_key",
    "license_key",
    "hmac_key",
    "sharedKey",
    "key",
    "Key",
    "dsn",
    "sas",
    "signature",
    "database_url",
    "DATABASE_URL",
    "connectionString",
    "webhook_url",
]
PLAIN = [
    "",
    "_",
    "to",
    "url",
    "user",
    "keys",
    "public_key",
    "object_key",
    "callback_url",
    "sessions",
    "assigned",
    "sass",
    "keyboard",
    "monkey",
    "primary_key",
    "sort_keys",
    "idempotencyKey",
    "passenger",
    "passed",
    "compass",
    "passport_country",
    "bypass",
    "secretary",
    "tokenizer",
    "tokenize",
    "author",
    "authority",
    "pinned",
    "spinning",
    "shipping",
    "option",
    "api",
    "access",
    "private",
    "鍵",
]
leaves = st.none() | st.booleans() | st.integers() | st.text(max_size=8)
names = st.sampled_from(["password", "apiKey", "user", "to", "items"])
documents = st.recursive(
    leaves, lambda part: st.lists(part, max_size=4) | st.dictionaries(names, part, max_size=4), max_leaves=20
)
objects = st.dictionaries(names, documents, max_size=4)


@pytest.mark.parametrize("name", SECRET)
def test_name_of_a_secret_is_known_in_every_spelling(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize("name", PLAIN)
def test_name_that_only_resembles_one_is_shown(name: str) -> None:
    assert not is_secret(name)


@pytest.mark.parametrize("value", ["hunter2", 0, 1234, False, 1.5, {"a": "hunter2"}, ["hunter2"], [], {}])
def test_secret_of_any_kind_is_replaced_whole(value: Any) -> None:
    assert redact({"password": value}) == {"password": REDACTED}


@pytest.mark.parametrize("value", [None, ""])
def test_secret_that_is_not_there_is_shown_as_absent(value: Any) -> None:
    assert redact({"password": value}) == {"password": value}


@pytest.mark.parametrize("label", ["name", "Name", "key", "header"])
def test_value_of_a_pair_is_secret_if_its_name_is(label: str) -> None:
    secret, plain = {label: "Authorization", "value": "hunter2"}, {label: "Accept", "value": "text/html"}
    assert redact([secret, plain]) == [{label: "Authorization", "value": REDACTED}, plain]
    assert restore([{label: "Authorization", "value": REDACTED}, plain], [secret, plain]) == [secret, plain]
    assert restore({label: "Authorization", "value": REDACTED}, secret) == secret


def test_secrets_are_found_at_any_depth() -> None:
    payload = {
        "url": "https://api.example",
        "headers": {"Authorization": "Bearer hunter2", "Accept": "*/*"},
        "accounts": [{"user": "a", "password": "hunter2"}, [{"apiKey": "hunter2"}]],
    }
    assert redact(payload) == {
        "url": "https://api.example",
        "headers": {"Authorization": REDACTED, "Accept": "*/*"},
        "accounts": [{"user": "a", "password": REDACTED}, [{"apiKey": REDACTED}]],
    }


def test_what_is_redacted_is_a_copy() -> None:
    payload = {"password": "hunter2", "inner": [{"token": "hunter2"}]}
    before = deepcopy(payload)
    redact(payload)
    assert payload == before


@pytest.mark.parametrize("value", ["text", 7, None, True, [], {}])
def test_what_has_no_names_is_left_alone(value: Any) -> None:
    assert redact(value) == value


@given(documents)
def test_redacting_twice_changes_nothing(document: Any) -> None:
    assert redact(redact(document)) == redact(document)


@given(objects)
def test_payload_that_is_sent_back_as_shown_is_the_stored_one(stored: dict[str, Any]) -> None:
    before = deepcopy(stored)
    assert restore(redact(stored), stored) == before
    assert stored == before


def test_edited_fields_change_and_redacted_ones_keep_their_stored_value() -> None:
    stored = {"to": "a@b.c", "smtp": {"host": "old", "password": "hunter2"}, "token": "t1"}
    edited = {"to": "x@y.z", "smtp": {"host": "new", "password": REDACTED}, "token": "t2"}
    assert restore(edited, stored) == {
        "to": "x@y.z",
        "smtp": {"host": "new", "password": "hunter2"},
        "token": "t2",
    }


def test_secret_that_was_a_whole_object_comes_back_whole() -> None:
    stored = {"credentials": {"user": "a", "parts": [1, 2]}}
    assert restore({"credentials": REDACTED}, stored) == stored


def test_field_that_was_taken_out_stays_out() -> None:
    assert restore({"to": "a"}, {"to": "a", "password": "hunter2"}) == {"to": "a"}


def test_marker_under_another_name_gets_no_secret() -> None:
    stored = {"password": "hunter2", "note": "hello"}
    assert restore({"note": REDACTED}, stored) == {"note": REDACTED}
    assert "hunter2" not in str(restore({"url": REDACTED, "inner": {"to": REDACTED}}, stored))


@pytest.mark.parametrize(
    "accounts",
    [
        [{"user": "b", "password": REDACTED}],
        [{"user": "b", "password": REDACTED}, {"user": "a", "password": REDACTED}],
        [{"user": "a", "password": REDACTED, "admin": True}, {"user": "b", "password": REDACTED}],
        [{"user": "a", "password": REDACTED}, {"user": "b", "password": REDACTED}, {"password": REDACTED}],
    ],
)
def test_entry_of_a_list_never_gets_the_secret_of_another_entry(accounts: list[Any]) -> None:
    stored = {"accounts": [{"user": "a", "password": "of a"}, {"user": "b", "password": "of b"}]}
    with pytest.raises(InvalidPayload, match=r"payload\.accounts\[\d\]\.password") as caught:
        restore({"accounts": accounts}, stored)
    assert "of " not in str(caught.value)


def test_entries_of_a_list_that_were_not_touched_keep_their_secrets() -> None:
    stored = {"accounts": [{"user": "a", "password": "of a"}, {"user": "b", "password": "of b"}]}
    edited = {
        "accounts": [{"user": "a", "password": REDACTED}, {"user": "b", "password": "new"}, {"user": "c"}]
    }
    assert restore(edited, stored) == {
        "accounts": [{"user": "a", "password": "of a"}, {"user": "b", "password": "new"}, {"user": "c"}]
    }


@pytest.mark.parametrize(
    "edited", [{"token": REDACTED}, {"smtp": {"password": REDACTED}}, {"to": {"password": REDACTED}}]
)
def test_marker_is_never_stored_as_the_secret_itself(edited: dict[str, Any]) -> None:
    with pytest.raises(InvalidPayload, match="nothing stored to restore"):
        restore(edited, {"to": "a@b.c", "password": "hunter2"})


@given(documents, documents)
def test_anything_can_be_sent_back(edited: Any, stored: Any) -> None:
    restore(edited, stored)
