"""Who may do what over HTTP: host names, origins, tokens and the sessions of logins, without a server."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigError
from holdfast.web.auth import SESSION_SECONDS, Access, Right, host_name, is_loopback, make_access

WRITE, READ, OTHER = "write me, write me", "read me, read me", "another one, another one"


def right_of(rules: Access, cookie: str) -> Right:
    session = rules.session_of(cookie)
    return Right.NOTHING if session is None else session.right


def access(
    token: str | None = None, read_token: str | None = None, hosts: tuple[str, ...] = (), kind: str = "token"
) -> Access:
    return make_access(token, read_token, hosts, kind)


# Hosts.


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("localhost", "localhost"),
        ("localhost:8000", "localhost"),
        ("LocalHost:8000", "localhost"),
        ("localhost.", "localhost"),
        ("127.0.0.1:0", "127.0.0.1"),
        ("[::1]", "::1"),
        ("[::1]:65535", "::1"),
        ("queue.example.com:443", "queue.example.com"),
        ("my_queue", "my_queue"),
    ],
)
def test_host_name_is_what_stands_before_the_port(host: str, name: str) -> None:
    assert host_name(host) == name


@pytest.mark.parametrize(
    "host",
    [
        None,
        "",
        ".",
        ":8000",
        "localhost:65536",
        "localhost:-1",
        "localhost:+80",
        "localhost:80:80",
        "localhost:http",
        "localhost: 80",
        "user@localhost",
        "user:secret@localhost",
        "localhost@evil.example",
        "localhost/",
        "localhost/@evil.example",
        "localhost?x",
        "localhost#x",
        "localhost\\@evil.example",
        "local\thost",
        "localhost\n",
        "localhost\x00",
        "localhost evil.example",
        "localhost,evil.example",
        "localhost;x",
        "lo%63alhost",
        "<localhost>",
        "lócalhost",
        "ⓛocalhost",
        "::1",
        "[::1",
        "::1]",
        "[::1]evil.example",
        "[::1]x:80",
        "evil.example[::1]",
        "[::1%25lo]",
        "[localhost]",
        "[]",
    ],
)
def test_what_is_not_a_host_has_no_name(host: str | None) -> None:
    assert host_name(host) is None


@given(st.text(max_size=40))
def test_any_text_as_host_raises_nothing(text: str) -> None:
    name = host_name(text)
    assert name is None or (name and name.isascii() and name == name.lower())


@given(st.text(alphabet="locahst127.0:[]@/\\ #?%", min_size=1, max_size=24))
def test_only_loopback_names_and_ports_are_served_by_default(text: str) -> None:
    rest = text.lower()
    for start in ("localhost", "[::1]", "127."):
        if rest.startswith(start):
            return
    if rest.startswith("["):  # other spellings of an IPv6 address
        return
    assert not access().is_host_allowed(text)


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "127.255.0.9", "::1", "::ffff:127.0.0.1"])
def test_loopback_is_known_in_all_its_forms(name: str) -> None:
    assert is_loopback(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "localhost.localdomain",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "0.0.0.0",
        "::",
        "203.0.113.1",
        "128.0.0.1",
        "fe80::1",
        "::ffff:203.0.113.1",
    ],
)
def test_nothing_else_is_loopback(name: str) -> None:
    assert not is_loopback(name)


def test_allowed_host_is_taken_with_any_port_and_case_and_no_other_name() -> None:
    rules = access(WRITE, hosts=("Queue.Example.com",))
    for host in ("queue.example.com", "QUEUE.example.COM:8443", "queue.example.com.", "localhost", "[::1]:1"):
        assert rules.is_host_allowed(host), host
    for host in ("example.com", "x.queue.example.com", "queue.example.com.evil", "queue.example.comx", ""):
        assert not rules.is_host_allowed(host), host


def test_star_allows_every_host_but_nothing_that_is_none() -> None:
    rules = access(WRITE, hosts=("*",))
    assert rules.is_host_allowed("anything.example:1")
    for host in (None, "", "user@anything.example", "a b"):
        assert not rules.is_host_allowed(host)


def test_outer_application_decides_about_hosts_unless_some_are_named() -> None:
    assert access(kind="outer").is_host_allowed("anything.example")
    assert not access(kind="outer").is_host_allowed(None)
    named = access(kind="outer", hosts=("queue.example.com",))
    assert named.is_host_allowed("queue.example.com")
    assert not named.is_host_allowed("anything.example")


@pytest.mark.parametrize(
    "host", ["", "http://queue.example.com", "a b", "user@host", "queue/x", "*.example.com "]
)
def test_allowed_host_that_is_none_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="host name"):
        access(WRITE, hosts=(host,))


# Origins.


def is_foreign(rules: Access, host: str, **headers: str) -> bool:
    given = {name.replace("_", "-").encode(): value.encode("latin-1") for name, value in headers.items()}
    return rules.is_foreign({b"host": host.encode(), **given})


def test_change_without_origin_and_fetch_site_is_no_browsers() -> None:
    assert not is_foreign(access(), "localhost:8000")


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost:8000", "http://localhost:8000"),
        ("localhost:8000", "HTTP://LOCALHOST:8000"),
        ("localhost", "http://localhost"),
        ("localhost:80", "http://localhost"),
        ("localhost", "http://localhost:80"),
        ("queue.example.com", "https://queue.example.com"),
        ("queue.example.com:443", "https://queue.example.com"),
        ("[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_own_origin_is_not_foreign(host: str, origin: str) -> None:
    assert not is_foreign(access(), host, origin=origin)
    assert not is_foreign(access(), host, origin=origin, sec_fetch_site="same-origin")


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "",
        "http://evil.example",
        "http://localhost",
        "http://localhost:8001",
        "http://localhost:80001",
        "http://127.0.0.1:8000",
        "http://evil.example:8000",
        "http://localhost.evil.example:8000",
        "http://evil.example/localhost:8000",
        "http://localhost:8000@evil.example",
        "http://localhost:8000/",
        "http://localhost:8000, http://evil.example",
        "ftp://localhost:8000",
        "file://",
        "chrome-extension://localhost:8000",
        "localhost:8000",
        "//localhost:8000",
        "http:localhost:8000",
        "ÿ",
    ],
)
def test_any_other_origin_is_foreign(origin: str) -> None:
    assert is_foreign(access(), "localhost:8000", origin=origin)
    assert is_foreign(access(WRITE, hosts=("*",)), "localhost:8000", origin=origin)
    assert is_foreign(access(kind="outer"), "localhost:8000", origin=origin)


@pytest.mark.parametrize(
    "site", ["cross-site", "same-site", "", "Same-Origin", "same-origin, none", "anything"]
)
def test_fetch_site_of_another_site_is_foreign_even_with_the_own_origin(site: str) -> None:
    assert is_foreign(access(), "localhost", sec_fetch_site=site)
    assert is_foreign(access(), "localhost", origin="http://localhost", sec_fetch_site=site)


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_own_fetch_site_does_not_excuse_a_foreign_origin(site: str) -> None:
    assert not is_foreign(access(), "localhost", sec_fetch_site=site)
    assert is_foreign(access(), "localhost", origin="http://evil.example", sec_fetch_site=site)


def test_name_that_a_proxy_shows_is_an_own_origin_if_it_is_allowed() -> None:
    rules = access(WRITE, hosts=("queue.example.com",))
    assert not is_foreign(rules, "127.0.0.1:8000", origin="https://queue.example.com")
    assert is_foreign(rules, "127.0.0.1:8000", origin="https://example.com")


def test_origin_of_another_port_is_foreign_though_its_name_is_allowed() -> None:
    rules = access(WRITE, hosts=("127.0.0.1", "queue.example.com"))
    assert is_foreign(rules, "127.0.0.1:8000", origin="http://127.0.0.1:3000")
    assert is_foreign(rules, "127.0.0.1:8000", origin="http://127.0.0.1")
    assert is_foreign(rules, "localhost:8000", origin="http://127.0.0.1:8000")
    for origin in ("http://queue.example.com:9999", "http://queue.example.com", "https://queue.example.com"):
        assert is_foreign(rules, "queue.example.com:8000", origin=origin)
        assert is_foreign(rules, "queue.example.com.:8000", origin=origin)
    assert not is_foreign(rules, "queue.example.com:8000", origin="http://queue.example.com:8000")


def test_plain_http_is_foreign_where_the_proxy_speaks_https() -> None:
    rules = access(WRITE, hosts=("queue.example.com",))
    for host in ("queue.example.com", "127.0.0.1:8000"):
        https = {"x_forwarded_proto": "https"}
        assert is_foreign(rules, host, origin="http://queue.example.com", **https)
        assert not is_foreign(rules, host, origin="https://queue.example.com", **https)
        assert not is_foreign(rules, host, origin="https://queue.example.com")


# Tokens.


def test_each_token_gives_its_right_and_no_other() -> None:
    rules = access(WRITE, READ)
    assert rules.needs_token
    assert rules.right_of_token(WRITE.encode()) is Right.CHANGE
    assert rules.right_of_token(READ.encode()) is Right.LOOK


@pytest.mark.parametrize(
    "given",
    [
        b"",
        b" ",
        WRITE[:-1].encode(),
        b"write me, write mee",
        WRITE.upper().encode(),
        b"\xff\xfe",
        "wörd".encode(),
        b"\x00",
        b"x" * 100_000,
    ],
)
def test_wrong_token_of_any_bytes_gives_nothing(given: bytes) -> None:
    assert access(WRITE, READ).right_of_token(given) is Right.NOTHING


def test_no_token_fits_where_none_is_set() -> None:
    rules = access()
    assert not rules.needs_token
    assert rules.right_of_token(b"") is Right.NOTHING
    assert right_of(rules, "2.99999999999.00.00") is Right.NOTHING


def test_token_beyond_ascii_is_compared_as_utf8() -> None:
    rules = access("langer-schlüssel-鍵")
    assert rules.right_of_token("langer-schlüssel-鍵".encode()) is Right.CHANGE
    assert rules.right_of_token("langer-schlüssel-鍵".encode("utf-16")) is Right.NOTHING
    assert rules.right_of_token("langer-schlüssel".encode("latin-1")) is Right.NOTHING


def test_token_itself_is_not_kept() -> None:
    assert b"hunter2" not in repr(access("hunter2" * 3, "hunter3" * 3)).encode()
    assert b"hunter" not in b"".join(access("hunter2" * 3, "hunter3" * 3).tokens.values())


@given(st.binary(max_size=64))
def test_any_bytes_as_token_raise_nothing(given_token: bytes) -> None:
    expected = Right.CHANGE if given_token == WRITE.encode() else Right.NOTHING
    assert access(WRITE).right_of_token(given_token) is expected


@pytest.mark.parametrize("token", ["\t", f"{READ}\n{READ}", f"{READ}\x00", f"\x1b[2J{READ}", f"{READ}\udcff"])
def test_token_that_is_not_printable_is_refused(token: str) -> None:
    with pytest.raises(ConfigError, match="the token must be printable"):
        access(token)
    with pytest.raises(ConfigError, match="the read-only token must be printable"):
        access(WRITE, token)


@pytest.mark.parametrize("token", ["", " ", "a", "x" * 15, " " + "x" * 15 + " ", "ü" * 15])
def test_token_under_16_characters_is_refused_in_one_line(token: str) -> None:
    with pytest.raises(ConfigError, match=r"^the token is too short: at least 16 characters are required \("):
        access(token)
    with pytest.raises(ConfigError, match="the read-only token is too short"):
        access(WRITE, token)
    assert access("x" * 16).right_of_token(b"x" * 16) is Right.CHANGE


def test_read_token_alone_is_refused() -> None:
    with pytest.raises(ConfigError, match="requires a full-access token too"):
        access(None, READ)


@pytest.mark.parametrize("read_token", [WRITE, f" {WRITE} "])
def test_two_equal_tokens_are_refused(read_token: str) -> None:
    with pytest.raises(ConfigError, match="must be different"):
        access(WRITE, read_token)


@pytest.mark.parametrize("kind", ["", "none", "OUTER", "off"])
def test_unknown_kind_of_authentication_is_refused(kind: str) -> None:
    with pytest.raises(ConfigError, match="'token' or 'outer'"):
        access(kind=kind)


@pytest.mark.parametrize(("token", "read_token"), [(WRITE, None), (WRITE, READ), (None, READ)])
def test_token_beside_an_outer_authentication_is_refused(token: str | None, read_token: str | None) -> None:
    with pytest.raises(ConfigError, match="don't pass a token"):
        access(token, read_token, kind="outer")


# Sessions.


def at(monkeypatch: pytest.MonkeyPatch, moment: float) -> None:
    monkeypatch.setattr("holdfast.web.auth.time.time", lambda: moment)


@pytest.mark.parametrize("right", [Right.LOOK, Right.CHANGE])
def test_session_gives_its_right_in_every_process_that_has_the_token(right: Right) -> None:
    cookie = access(WRITE, READ).make_session(right)
    assert right_of(access(WRITE, READ), cookie) is right


def test_session_says_nothing_of_the_token_and_is_never_the_same_twice() -> None:
    rules = access("hunter2" * 3)
    first, second = rules.make_session(Right.CHANGE), rules.make_session(Right.CHANGE)
    assert first != second
    assert "hunter2" not in first
    assert rules.tokens[Right.CHANGE].hex() not in first


def test_session_ends_after_twelve_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    rules, now = access(WRITE), time.time()
    assert SESSION_SECONDS == 12 * 3600
    at(monkeypatch, now)
    cookie = rules.make_session(Right.CHANGE)
    at(monkeypatch, now + 12 * 3600 - 2)
    assert right_of(rules, cookie) is Right.CHANGE
    at(monkeypatch, now + 12 * 3600 + 1)
    assert right_of(rules, cookie) is Right.NOTHING


def test_session_of_another_token_gives_nothing() -> None:
    cookie = access(WRITE, READ).make_session(Right.CHANGE)
    assert right_of(access(OTHER, READ), cookie) is Right.NOTHING
    reading = access(WRITE, READ).make_session(Right.LOOK)
    assert right_of(access(OTHER, READ), reading) is Right.LOOK
    assert right_of(access(WRITE, OTHER), reading) is Right.NOTHING
    assert right_of(access(WRITE), reading) is Right.NOTHING


def test_session_of_a_reader_can_t_be_made_into_a_writer_s() -> None:
    rules = access(WRITE, READ)
    cookie = rules.make_session(Right.LOOK)
    assert cookie.startswith("1.")
    assert right_of(rules, "2" + cookie[1:]) is Right.NOTHING


def test_session_can_t_be_made_to_last_longer() -> None:
    rules = access(WRITE)
    right, until, chance, signature = rules.make_session(Right.CHANGE).split(".")
    longer = f"{right}.{int(until) + 1}.{chance}.{signature}"
    assert right_of(rules, longer) is Right.NOTHING


@pytest.mark.parametrize("place", range(0, 90, 7))
def test_session_with_any_character_changed_gives_nothing(place: int) -> None:
    rules = access(WRITE)
    cookie = rules.make_session(Right.CHANGE)
    place %= len(cookie)
    changed = cookie[:place] + ("0" if cookie[place] != "0" else "1") + cookie[place + 1 :]
    assert right_of(rules, changed) is Right.NOTHING


@pytest.mark.parametrize("cookie", ["", ".", "...", "2", "2.9.9.", "0.9.9.9", "3.9.9.9", "²..", "ÿ.ÿ.ÿ.ÿ"])
def test_forged_session_gives_nothing(cookie: str) -> None:
    assert right_of(access(WRITE, READ), cookie) is Right.NOTHING


@given(st.text(st.characters(max_codepoint=255), max_size=120))
def test_any_text_as_session_gives_nothing_and_raises_nothing(cookie: str) -> None:
    assert right_of(access(WRITE, READ), cookie) is Right.NOTHING
