"""What is typed into a search box: words, phrases, fields of the payload, and what they find."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.search import LONGEST, MOST_WORDS, Field, Search, parse_search
from holdfast.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "search"),
    [
        ("", Search()),
        (" \t\n", Search()),
        ('""', Search()),
        ("Boom", Search(("boom",))),
        ("no route  HOST", Search(("no", "route", "host"))),
        ("twice TWICE", Search(("twice",))),
        ('"no route" host', Search(("no route", "host"))),
        ('"left open', Search(("left open",))),
        ('say"this one"now', Search(("say", "this one", "now"))),
        ("payload.user.id:42", Search((), (Field(("user", "id"), "42"),))),
        ('payload.name:"Ada Lovelace" boom', Search(("boom",), (Field(("name",), "ada lovelace"),))),
        ('payload.name:"Ada', Search((), (Field(("name",), "ada"),))),
        ('payload.name:""', Search((), (Field(("name",), ""),))),
        ("payload.url:http://x:80/", Search((), (Field(("url",), "http://x:80/"),))),
        ("payload.a:1 payload.b.0:2", Search((), (Field(("a",), "1"), Field(("b", "0"), "2")))),
        ("payload.x", Search(("payload.x",))),
        ("payload.x:", Search(("payload.x:",))),
        ("payload.x: 5", Search(("payload.x:", "5"))),
        ("payload:5", Search(("payload:5",))),
        ("payload..x:5", Search(("payload..x:5",))),
        ("payload.:5", Search(("payload.:5",))),
        ('"payload.x:5"', Search(("payload.x:5",))),
        ("mypayload.x:5", Search(("mypayload.x:5",))),
        ("STRASSE", Search(("strasse",))),
    ],
    ids=ascii,
)
def test_text_is_read_as_a_person_means_it(text: str, search: Search) -> None:
    assert parse_search(text) == search


def test_every_word_must_stand_in_some_text_whatever_its_case() -> None:
    search = parse_search('Order "NO route"')
    assert search.finds("order-7", None, "OSError: no ROUTE to host")
    assert search.finds("a", "ORDER", "no route")
    assert not search.finds("order-7", None, None)
    assert not search.finds("order-7", "no", "route")
    assert parse_search("strasse").finds("Straße")
    assert Search().finds(None)


PAYLOAD: dict[str, Any] = {
    "user": {"id": 42, "name": "Ada Lovelace", "tags": ["A", {"deep": True}], "7": "seven"},
    "text": "42",
    "big": 12345678901234567890123,
    "float": 1.5,
    "none": None,
    "off": False,
    "empty": "",
    "list": [1, 2],
    "object": {"b": 1},
    "account": {"token": "hush", "plan": "free"},
    "keys": [{"password": "hush"}],
}


@pytest.mark.parametrize(
    "text",
    [
        "payload.user.id:42",
        "payload.text:42",
        'payload.text:"42"',
        'payload.user.name:"ada LOVELACE"',
        "payload.user.tags.0:a",
        "payload.user.tags.1.deep:true",
        "payload.user.7:seven",
        "payload.big:12345678901234567890123",
        "payload.float:1.5",
        "payload.none:null",
        "payload.off:false",
        'payload.empty:""',
        "payload.list:[1,2]",
        'payload.object:{"b":1}',
        "payload.user.id:42 payload.off:False",
    ],
)
def test_field_with_that_value_is_found(text: str) -> None:
    assert parse_search(text).finds_in(PAYLOAD)


@pytest.mark.parametrize(
    "text",
    [
        "payload.user.id:4",
        "payload.user.id:42.0",
        "payload.user.name:ada",
        "payload.big:12345678901234567890124",
        "payload.big:1.2345678901234568e+22",
        "payload.none:none",
        "payload.none:0",
        "payload.off:0",
        "payload.missing:null",
        "payload.user.tags.2:a",
        "payload.user.tags.-1:a",
        "payload.user.tags.x:a",
        "payload.text.0:4",
        "payload.list:1",
        "payload.user.id:42 payload.off:true",
    ],
)
def test_field_with_another_value_is_not(text: str) -> None:
    assert not parse_search(text).finds_in(PAYLOAD)


@pytest.mark.parametrize(
    "text", ["payload.password:x", "payload.account.token:hush", "payload.apiKey.id:1", "a payload.0.pwd:x"]
)
def test_secret_can_not_be_searched_for(text: str) -> None:
    """Or the answer would tell it."""
    with pytest.raises(ConfigError, match="secret"):
        parse_search(text)


@pytest.mark.parametrize(
    "text", ['payload.account:{"token":"hush","plan":"free"}', 'payload.keys:[{"password":"hush"}]']
)
def test_secret_further_down_is_not_confirmed_either(text: str) -> None:
    assert not parse_search(text).finds_in(PAYLOAD)


def test_secret_value_of_a_pair_is_not_confirmed_either() -> None:
    payload = {"headers": [{"name": "Authorization", "value": "hush"}, {"name": "Accept", "value": "text"}]}
    assert not parse_search("payload.headers.0.value:hush").finds_in(payload)
    assert parse_search("payload.headers.1.value:text").finds_in(payload)


def test_long_searches_are_refused() -> None:
    assert len(parse_search(" ".join(map(str, range(MOST_WORDS)))).words) == MOST_WORDS
    assert parse_search("x" * LONGEST).words == ("x" * LONGEST,)
    with pytest.raises(ConfigError, match=str(MOST_WORDS)):
        parse_search(" ".join(map(str, range(MOST_WORDS + 1))))
    with pytest.raises(ConfigError, match=str(MOST_WORDS)):
        parse_search(" ".join(f"payload.a:{n} {n}" for n in range(MOST_WORDS // 2 + 1)))
    with pytest.raises(ConfigError, match=str(LONGEST)):
        parse_search("x" * (LONGEST + 1))
    with pytest.raises(ConfigError, match="text"):
        parse_search(7)


@given(st.text(st.sampled_from('payload.:"x7 \n\\{}[]'), max_size=60) | st.text(max_size=60))
def test_any_text_is_a_search_or_a_refusal(text: str) -> None:
    try:
        search = parse_search(text)
    except ConfigError:
        return
    search.finds("id", None, "error")
    search.finds_in(PAYLOAD)
    assert all(word == word.strip() != "" for word in search.words)
