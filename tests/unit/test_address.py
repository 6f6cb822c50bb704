"""Addresses before an engine reads them: a relative one stays where it was made, and no password is shown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast import Queue
from holdfast.core.clock import system_clock
from holdfast.errors import ConfigError
from holdfast.store.move import open_end
from holdfast.store.open import anchored, open_store


def test_relative_address_is_resolved_when_the_queue_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    with Queue("sqlite:///queue.db") as queue:
        monkeypatch.chdir(elsewhere)
        job = queue.enqueue("crawl")
        queue.close()
        assert queue.get(job.id) is not None
    assert list(elsewhere.iterdir()) == []
    assert (tmp_path / "queue.db").exists()


def test_relative_home_is_resolved_when_the_queue_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("QUEUECTL_DATABASE_URL", raising=False)
    monkeypatch.setenv("QUEUECTL_HOME", "own")
    monkeypatch.chdir(tmp_path)
    assert Queue().url == f"sqlite:///{tmp_path}/own/queue.db"


def test_folder_with_odd_characters_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = tmp_path / "100% sure?"
    odd.mkdir()
    monkeypatch.chdir(odd)
    with Queue("sqlite:///queue.db?synchronous=normal") as queue:
        queue.open()
    assert (odd / "queue.db").exists()


def test_relative_address_in_the_root_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    assert anchored("sqlite:///queue.db") == "sqlite:////queue.db"


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:////srv/queue.db",
        "sqlite:///%2Fsrv/queue.db",
        "sqlite:///:memory:",
        "sqlite:///",
        "sqlite://",
        "postgresql:///jobs",
        "queue.db",
    ],
)
def test_every_other_address_is_left_as_it_is(url: str) -> None:
    assert anchored(url) == url


def test_relative_address_in_a_folder_that_is_gone_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    gone = tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    with pytest.raises(ConfigError, match=r"queue\.db .* the current folder was removed"):
        Queue("sqlite:///queue.db")


@pytest.mark.parametrize(
    "url",
    [
        "host=127.0.0.1 user=app password=s3cret dbname=app",
        "host=h password=s3cret sslcert=file://x",
        "app:s3cret@h/db",
        "postgresql:app:s3cret@h/db",
        "sqlite://app:s3cret@h/db",
        "sqlite:///queue.db?key=s3cret",
        "sqlite:///queue.db?synchronous=s3cret",
    ],
)
def test_address_that_is_wrong_does_not_show_its_password(url: str, tmp_path: Path) -> None:
    for opening in (lambda: open_store(url, system_clock), lambda: open_end(url)):
        with pytest.raises(ConfigError) as caught:
            opening()
        assert "s3cret" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_path_without_a_scheme_is_shown() -> None:
    with pytest.raises(ConfigError, match=r"'data/my queue\.db' is not a database address"):
        open_store("data/my queue.db", system_clock)
