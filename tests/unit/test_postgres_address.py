"""The address of a PostgreSQL queue: what it may say, and what is never shown of it."""

from __future__ import annotations

import pytest
from psycopg.conninfo import conninfo_to_dict

from holdfast.errors import ConfigError, HoldfastError
from holdfast.store.postgres.address import parse_url, without_password


def known(url: str) -> dict[str, object]:
    return dict(conninfo_to_dict(parse_url(url).conninfo))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:s3cret@h/db", "postgresql://u:***@h/db"),
        ("postgres://u:s3cret@h:5432/db?schema=jobs", "postgres://u:***@h:5432/db?schema=jobs"),
        ("postgresql://u:s3cret@[::1]:5432/db", "postgresql://u:***@[::1]:5432/db"),
        ("postgresql://:s3cret@h/db", "postgresql://:***@h/db"),
        ("postgresql://u:@h/db", "postgresql://u:***@h/db"),
        ("postgresql://h/db?user=u&password=s3cret", "postgresql://h/db?user=u&password=***"),
        ("postgresql://h/db?pass%77ord=s3cret&pool=2", "postgresql://h/db?pass%77ord=***&pool=2"),
        ("postgresql://h/db?sslpassword=s3cret", "postgresql://h/db?sslpassword=***"),
        ("postgresql://u:s3cret@h/db?password=s3cret", "postgresql://u:***@h/db?password=***"),
        ("postgresql://u:s?3cret@h/db?schema=jobs", "postgresql://u:***@h/db?schema=jobs"),
        ("postgresql://h/db?user=u&password=s3cret@x", "postgresql://h/db?user=u&password=***"),
        ("postgresql://h/db?options=-c%20a.b%3Ds3cret", "postgresql://h/db?options=***"),
        ("postgresql://u%3As3cret@h/db", "postgresql://u%3A***@h/db"),
        # Wrong ones.
        ("postgresql://u:s?3/cret3cret@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:s/?3cret@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:12?3cret/x@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:s/x?user=3cret@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:s&password?3cret/@h/db", "postgresql://u:***@h/db"),
        ('postgresql://u:s"/3cret@h/db', "postgresql://u:***@h/db"),
        ("postgresql://h/db?requirepass=s3cret", "postgresql://h/db?requirepass=***"),
        ("postgresql://h/db?nonsense=s3cret@x", "postgresql://h/db?nonsense=***"),
        ("postgresql://h/db?pool=2;password=s3cret", "postgresql://h/db?pool=***"),
        ("postgresql://h/db?s3cret", "postgresql://h/db?***"),
        ("postgresql:u:s3cret@h/db", "***"),
        ("postgresql://u:s@3cret@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:s/3cret@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:s3cret/db", "postgresql://u:***/db"),
        ("postgresql://u:s3cret", "postgresql://u:***"),
        ("postgresql://u:%s3cret@h/db", "postgresql://u:***@h/db"),
    ],
)
def test_password_is_never_shown(url: str, shown: str) -> None:
    assert without_password(url) == shown
    try:
        text = repr(parse_url(url))
    except HoldfastError as error:
        text = str(error)
    assert "3cret" not in text


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://",
        "postgresql:///db",
        "postgresql://h/db",
        "postgresql://u@h:5432/db",
        "postgresql://[::1]:5432/db",
        "postgresql://h1:5432,h2:5433/db",
        "postgresql://u@/db?host=/run/postgresql&sslmode=require",
        "postgresql://h/db?user=a@b",
        "postgresql://h:5432/db?user=a@b",
        "postgresql://u%40x@h/db",
    ],
)
def test_address_without_a_password_is_shown_as_it_is(url: str) -> None:
    assert parse_url(url).shown == url


@pytest.mark.parametrize(
    ("written", "password"),
    [("a+b", "a+b"), ("a%20b", "a b"), ("%40%2F%3A%25", "@/:%"), ("p%C3%A4ss", "päss"), ("a?b", "a?b")],
)
def test_password_reaches_the_server_as_it_was_meant(written: str, password: str) -> None:
    assert known(f"postgresql://u:{written}@h/db")["password"] == password
    assert known(f"postgresql://u@h/db?password={written}&schema=x")["password"] == password


def test_options_of_ours_are_taken_out_and_those_of_libpq_are_left() -> None:
    address = parse_url("postgresql://h/db?schema=my%20jobs&sslmode=require&synchronous_commit=off&pool=3")
    assert (address.schema, address.synchronous_commit, address.pool) == ("my jobs", "off", 3)
    options = conninfo_to_dict(address.conninfo)
    assert options["sslmode"] == "require"
    assert not {"schema", "synchronous_commit", "pool"} & set(options)


def test_what_the_address_says_beats_what_we_would_say() -> None:
    options = known("postgresql://h/db?connect_timeout=30&keepalives_idle=60&application_name=shop")
    assert options["connect_timeout"] == "30"
    assert options["keepalives_idle"] == "60"
    assert options["application_name"] == "shop"


def test_what_the_environment_says_beats_what_we_would_say(monkeypatch: pytest.MonkeyPatch) -> None:
    assert known("postgresql://h/db")["connect_timeout"] == "5"
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "30")
    options = known("postgresql://h/db")
    assert "connect_timeout" not in options
    assert "application_name" not in options  # which PGAPPNAME or a service file may say


def test_texts_travel_as_utf8_whatever_is_said() -> None:
    assert known("postgresql://h/db?client_encoding=latin1")["client_encoding"] == "utf8"


def test_of_several_hosts_the_one_that_can_be_written_is_chosen() -> None:
    assert known("postgresql://a,b/db")["target_session_attrs"] == "read-write"
    assert known("postgresql://a,b/db?target_session_attrs=any")["target_session_attrs"] == "any"
    assert "target_session_attrs" not in known("postgresql://a/db")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://h:port/db",
        "postgresql://h:0/db",
        "postgresql://h:65536/db",
        "postgresql://h:1,g:x/db",
        "postgresql://h:5432:5433/db",
        "postgresql://[::1/db",
        "postgresql://h/%zz",
        "postgresql://h/%00",
        "postgresql://h/\0",
        "postgresql://h/\ud800",
        "postgresql://h/%ff",
        "postgresql://h/db?nonsense=1",
        "postgresql://h/db?sslmode",
        "postgresql://h/db?=",
        "postgresql://h/db?schema=",
        f"postgresql://h/db?schema={'s' * 64}",
        "postgresql://h/db?schema=pg_jobs",
        "postgresql://h/db?synchronous_commit=maybe",
        "postgresql://h/db?pool=0",
        "postgresql://h/db?pool=-1",
        "postgresql://h/db?pool=many",
        "postgresql://h/db?pool=1001",
        "postgresql://h/db?pool=",
    ],
)
def test_nonsense_is_one_line(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_url(url)
    assert str(caught.value).isprintable()
    assert "postgresql://" in str(caught.value)


def test_password_that_must_be_encoded_is_explained() -> None:
    with pytest.raises(ConfigError, match=r"in a password, write @ as %40"):
        parse_url("postgresql://u:s@3cret@h/db")
