"""Where things are by default: the home folder, the stop file, the database, whatever their names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast import Queue
from holdfast.config import default_database_url, home_folder, stop_file

ODD_NAMES = [
    "plain",
    "with space",
    "per%cent",
    "100%",
    "%41",
    "%25",
    "what?",
    "?synchronous=off",
    "hash#tag",
    "a&b=c",
    "plus+",
    "žluťoučký 😀",
    "quote'\"",
    "back\\slash",
    "semi;colon",
    "per%cent? and#all ü",
]


@pytest.fixture(autouse=True)
def no_database_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUEUECTL_DATABASE_URL", raising=False)


@pytest.mark.parametrize("name", ODD_NAMES)
def test_queue_of_an_oddly_named_home_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    home = tmp_path / name
    monkeypatch.setenv("QUEUECTL_HOME", str(home))
    with Queue() as queue:
        job = queue.enqueue("crawl")
    assert (home / "queue.db").is_file()
    assert sorted(os.listdir(tmp_path)) == [name]
    with Queue(default_database_url()) as queue:
        assert queue.get(job.id) is not None


@pytest.mark.parametrize("name", ODD_NAMES)
def test_address_of_a_queue_opens_the_same_queue_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Worker processes are given it."""
    monkeypatch.setenv("QUEUECTL_HOME", str(tmp_path / name))
    with Queue() as first:
        job = first.enqueue("crawl")
        with Queue(first.url) as second:
            assert second.get(job.id) is not None


def test_home_whose_name_is_not_utf_8_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = os.fsdecode(b"caf\xe9 100%")
    monkeypatch.setenv("QUEUECTL_HOME", str(tmp_path / name))
    with Queue() as queue:
        queue.enqueue("crawl")
    assert os.listdir(os.fsencode(tmp_path)) == [b"caf\xe9 100%"]


def test_stop_file_is_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEUECTL_HOME", str(tmp_path))
    assert stop_file() == f"{tmp_path}/.stop_workers"
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("given", [None, ""])
def test_home_is_below_the_users_own_where_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str | None
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    if given is None:
        monkeypatch.delenv("QUEUECTL_HOME", raising=False)
    else:
        monkeypatch.setenv("QUEUECTL_HOME", given)
    assert home_folder() == f"{tmp_path}/.queuectl"
    assert stop_file() == f"{tmp_path}/.queuectl/.stop_workers"
    assert default_database_url() == f"sqlite:///{tmp_path}/.queuectl/queue.db"


def test_database_that_is_named_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEUECTL_DATABASE_URL", "sqlite:////srv/100%25.db?synchronous=normal")
    assert default_database_url() == "sqlite:////srv/100%25.db?synchronous=normal"
