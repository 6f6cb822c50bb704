"""The marks of what a worker has started: they survive it, and nobody else can write or misread them."""

from __future__ import annotations

import errno
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core.ids import new_id
from holdfast.system import start_marks
from holdfast.system.start_marks import (
    Started,
    StartMarks,
    read_started,
    remove_marks,
    remove_old_marks,
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where they are kept."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"holdfast-{os.getuid()}"


@pytest.fixture
def marks() -> Iterator[StartMarks]:
    marks = StartMarks(new_id())
    yield marks
    marks.close(keep=False)


def started(worker_id: str) -> set[tuple[int, int]]:
    found = read_started(worker_id)
    assert found is not None
    assert found.complete
    return set(found.attempts)


def test_what_has_begun_is_known_until_its_end_is_written() -> None:
    worker = new_id()
    marks = StartMarks(worker)
    assert started(worker) == set()
    first, second = marks.begin(7, 2), marks.begin(2**62, 2**31)
    assert started(worker) == {(7, 2), (2**62, 2**31)}
    marks.end([first, None])  # of the other no start was noted
    third = marks.begin(9, 1)
    assert started(worker) == {(2**62, 2**31), (9, 1)}, "the place of the one that has ended is used again"
    marks.end([second, third])
    marks.close(keep=False)
    assert read_started(worker) is None


def test_nothing_is_known_of_a_worker_without_marks() -> None:
    assert read_started(new_id()) is None


def test_marks_are_for_this_user_alone(folder: Path, marks: StartMarks) -> None:
    [file] = folder.iterdir()
    assert (folder.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)


@pytest.mark.parametrize(
    "id",
    [
        "../../etc/passwd",
        "w1",
        "",
        "a" * 36,
        "01A1F278-D11F-77C7-A8FE-7A02BD0837F8",
        "01a1f278-d11f-77c7-a8fe-7a02bd0837f8\n",
    ],
)
def test_only_the_id_of_a_worker_is_part_of_a_path(id: str, tmp_path: Path) -> None:
    """It may come from a database that others write to."""
    assert isinstance(StartMarks(id).trouble, FileNotFoundError)
    assert read_started(id) is None
    remove_marks(id)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.process
def test_marks_outlive_a_process_that_is_killed() -> None:
    worker = new_id()
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        marks = StartMarks(worker)
        marks.begin(1, 1)
        os.write(writer, b".")
        signal.pause()
    os.read(reader, 1)
    remove_marks(worker)  # refused: it lives
    before = read_started(worker)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert before is not None
    os.close(reader)
    os.close(writer)
    assert started(worker) == {(1, 1)}
    remove_marks(worker)
    assert read_started(worker) is None


def test_more_starts_than_there_was_room_for_at_first_are_known_too() -> None:
    worker = new_id()
    marks = StartMarks(worker)
    names = {(seq, 1) for seq in range(1, 10_001)}

    def begin(part: int) -> None:
        for seq, version in sorted(names):
            if seq % 4 == part:
                marks.begin(seq, version)

    threads = [threading.Thread(target=begin, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert started(worker) == names
    remove_marks(worker)
    assert started(worker) == names, "the larger file is locked as well"
    marks.close(keep=True)


def test_what_finds_no_room_on_a_full_disk_is_not_taken_for_unstarted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    worker = new_id()
    marks = StartMarks(worker)
    monkeypatch.setattr(start_marks, "_fill", full)
    for seq in range(1, 2051):
        marks.begin(seq, 1)
    found = read_started(worker)
    assert found is not None
    assert (found.knows((1, 1)), found.knows((2050, 1)), found.complete) == (True, None, False)
    marks.close(keep=False)


@pytest.mark.parametrize("obstacle", ["full", "link", "others", "file"])
def test_worker_that_can_note_nothing_works_all_the_same(
    obstacle: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    match obstacle:
        case "full":
            monkeypatch.setattr(start_marks, "_fill", full)
        case "link":
            (tmp_path / "elsewhere").mkdir(mode=0o700)
            folder.symlink_to(tmp_path / "elsewhere")
        case "others":
            folder.mkdir()
            folder.chmod(0o777)
        case _:
            folder.write_text("")
    worker = new_id()
    marks = StartMarks(worker)
    assert isinstance(marks.trouble, OSError)
    assert marks.begin(1, 1) is None
    marks.end([None])
    marks.touch()
    marks.close(keep=False)
    assert read_started(worker) is None
    remove_old_marks()
    assert not folder.is_dir() or [*folder.iterdir()] == []


def test_link_in_place_of_marks_is_not_followed(folder: Path, tmp_path: Path, marks: StartMarks) -> None:
    target, worker = tmp_path / "target", new_id()
    target.write_bytes(b"precious")
    (folder / worker).symlink_to(target)
    assert isinstance(StartMarks(worker).trouble, FileExistsError)
    assert read_started(worker) is None
    remove_marks(worker)
    assert target.read_bytes() == b"precious"


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 4096])
def test_file_of_another_kind_says_nothing(folder: Path, marks: StartMarks, content: bytes) -> None:
    worker = new_id()
    (folder / worker).write_bytes(content)
    (folder / worker).chmod(0o600)
    assert read_started(worker) is None


def test_marks_from_before_the_host_was_restarted_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the kernel had not yet written is missing from them."""
    worker = new_id()
    marks = StartMarks(worker)
    marks.begin(1, 1)
    monkeypatch.setattr(start_marks, "_boot", lambda: b"another")
    assert read_started(worker) is None
    marks.close(keep=True)


def test_marks_of_what_has_not_ended_stay_when_the_worker_stops() -> None:
    worker = new_id()
    marks = StartMarks(worker)
    marks.begin(1, 1)
    marks.close(keep=False)
    assert marks.begin(2, 1) is None  # in a thread that is left behind
    assert started(worker) == {(1, 1)}
    remove_marks(worker)
    assert read_started(worker) is None


def test_old_marks_are_removed_but_not_those_of_the_living(folder: Path) -> None:
    living, dead, fresh = new_id(), new_id(), new_id()
    marks = StartMarks(living)
    for worker in (dead, fresh):
        StartMarks(worker).close(keep=True)
    week_ago = time.time() - 7 * 24 * 3600
    for worker in (living, dead):
        os.utime(folder / worker, (week_ago, week_ago))
    remove_old_marks()
    assert {path.name for path in folder.iterdir()} == {living, fresh}
    marks.touch()
    assert (folder / living).stat().st_mtime > week_ago + 1
    marks.close(keep=False)


def test_complete_marks_know_what_has_not_started() -> None:
    complete, partial = (Started(frozenset({(1, 1)}), complete) for complete in (True, False))
    assert [complete.knows((1, 1)), complete.knows((1, 2))] == [True, False]
    assert [partial.knows((1, 1)), partial.knows((1, 2))] == [True, None]
