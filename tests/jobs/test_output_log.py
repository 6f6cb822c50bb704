"""The log file of a shell job: its headings, its cap, and that it never costs the job anything."""

from __future__ import annotations

import errno
import os
import re
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.jobs import output_log
from holdfast.jobs.output_log import TAIL_BYTES, Follower, OutputLog, SharedTail, log_path
from tests.support import open_files

SMALLEST = 1024
"""The smallest value that the setting max_log_bytes takes."""

MARK = re.compile(rb"\n\[\.\.\. (\d+) bytes left out \.\.\.\]\n")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QUEUECTL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def content(job_id: str = "job1") -> bytes:
    return Path(log_path(job_id)).read_bytes()


def numbers(size: int, start: int = 0) -> bytes:
    """Text in which every place is told from every other."""
    first, last = start // 8, (start + size) // 8 + 1
    text = b"".join(b"%07d\n" % number for number in range(first, last))
    return text[start - 8 * first :][:size]


def check(stored: bytes, stream: bytes, limit: int) -> None:
    """The file holds all of the stream, or its head, the size of what is missing, and its tail."""
    assert len(stored) <= limit
    if stored == stream:
        return
    head = limit // 2
    assert stored[:head] == stream[:head], "the head is not the beginning"
    mark = MARK.match(stored, head)
    assert mark is not None, f"no mark behind the head: {stored[head : head + 64]!r}"
    tail = stored[mark.end() :]
    assert stream.endswith(tail), "the tail is not the end"
    assert len(tail) >= min(limit // 4, len(stream) - head)
    assert head + int(mark[1]) + len(tail) == len(stream), "the mark does not add up"
    assert len(MARK.findall(stored)) == 1


# Headings.


def test_attempts_stand_under_their_own_headings() -> None:
    first = OutputLog("job1", SMALLEST, fresh=True)
    first.heading("attempt 1")
    first.write(b"one\n")
    first.end("exit code 1")
    second = OutputLog("job1", SMALLEST, fresh=False)
    second.heading("attempt 2")
    second.write(b"two\n")
    second.end("exit code 0")
    assert content() == (
        b"--- attempt 1 ---\none\n--- exit code 1 ---\n--- attempt 2 ---\ntwo\n--- exit code 0 ---\n"
    )


def test_last_line_begins_a_line_of_its_own() -> None:
    log = OutputLog("job1", SMALLEST, fresh=True)
    log.write(b"no line end")
    log.end("exit code 0")
    assert content() == b"no line end\n--- exit code 0 ---\n"
    assert log.tail == b"no line end", "which is not the output's"


def test_attempt_without_output_has_no_empty_line() -> None:
    log = OutputLog("job1", SMALLEST, fresh=True)
    log.heading("attempt 1")
    log.end("exit code 0")
    assert content() == b"--- attempt 1 ---\n--- exit code 0 ---\n"


def test_first_attempt_drops_the_log_of_an_older_job_of_the_same_id() -> None:
    OutputLog("job1", SMALLEST, fresh=True).end("the older job")
    OutputLog("job1", SMALLEST, fresh=True).end("the new job")
    assert content() == b"--- the new job ---\n"


def test_output_can_be_read_while_the_command_runs() -> None:
    log = OutputLog("job1", SMALLEST, fresh=True)
    log.write(b"so far")
    assert content() == b"so far"
    log.close()


def test_tail_is_that_of_the_attempt_alone() -> None:
    first = OutputLog("job1", SMALLEST, fresh=True)
    first.write(b"first")
    first.close()
    second = OutputLog("job1", SMALLEST, fresh=False)
    second.heading("attempt 2")
    assert second.tail_text() == ""
    second.write(b"second")
    assert second.tail_text() == "second"
    second.close()


# The cap.


def test_output_up_to_the_cap_is_kept_whole() -> None:
    log = OutputLog("job1", SMALLEST, fresh=True)
    for start in range(0, SMALLEST, 8):
        log.write(numbers(8, start))
    log.close()
    assert content() == numbers(SMALLEST)


def test_one_byte_more_than_the_cap_keeps_head_and_tail() -> None:
    log = OutputLog("job1", SMALLEST, fresh=True)
    log.write(numbers(SMALLEST))
    log.write(b"!")
    log.close()
    check(content(), numbers(SMALLEST) + b"!", SMALLEST)
    assert MARK.search(content())


@pytest.mark.parametrize("size", [SMALLEST + 1, 10 * SMALLEST, 1_000_000])
def test_one_large_write_keeps_head_and_tail(size: int) -> None:
    log = OutputLog("job1", SMALLEST, fresh=True)
    log.write(numbers(size))
    log.close()
    check(content(), numbers(size), SMALLEST)


def test_single_bytes_keep_head_and_tail_at_every_moment() -> None:
    log = OutputLog("job1", SMALLEST, fresh=True)
    stream = numbers(4 * SMALLEST)
    for end in range(1, len(stream) + 1):
        log.write(stream[end - 1 : end])
        check(content(), stream[:end], SMALLEST)
    log.close()


def test_mark_of_the_gap_adds_up_over_compactions_and_attempts() -> None:
    stream = b""
    left_out = [0]
    for attempt in range(1, 6):
        log = OutputLog("job1", SMALLEST, fresh=attempt == 1)
        log.heading(f"attempt {attempt}")
        stream += f"--- attempt {attempt} ---\n".encode()
        for start in range(0, 3000, 300):
            log.write(numbers(300, start))
            stream += numbers(300, start)
            check(content(), stream, SMALLEST)
        log.end("exit code 1")
        stream += (b"" if stream.endswith(b"\n") else b"\n") + b"--- exit code 1 ---\n"
        check(content(), stream, SMALLEST)
        mark = MARK.search(content())
        assert mark is not None
        left_out.append(int(mark[1]))
    assert all(before < after for before, after in pairwise(left_out))


def test_last_heading_stands_at_the_end_of_a_log_that_was_cut() -> None:
    log = OutputLog("job1", SMALLEST, fresh=True)
    log.write(numbers(100_000))
    log.end("killed by signal 9")
    assert content().endswith(b"\n--- killed by signal 9 ---\n")


def test_head_of_the_first_attempt_survives_later_floods() -> None:
    first = OutputLog("job1", SMALLEST, fresh=True)
    first.heading("attempt 1")
    first.write(b"the cause of it all\n")
    first.end("exit code 1")
    later = OutputLog("job1", SMALLEST, fresh=False)
    later.write(numbers(50_000))
    later.close()
    assert content().startswith(b"--- attempt 1 ---\nthe cause of it all\n--- exit code 1 ---\n")


@pytest.mark.parametrize(("before", "after"), [(8192, SMALLEST), (SMALLEST, 8192), (8192, 8191)])
def test_changed_cap_holds_from_the_next_attempt_on(before: int, after: int) -> None:
    first = OutputLog("job1", before, fresh=True)
    first.write(numbers(20_000))
    first.close()
    second = OutputLog("job1", after, fresh=False)
    second.write(numbers(20_000, 20_000))
    second.close()
    assert len(content()) <= after
    assert content().startswith(numbers(min(before, after) // 2))
    assert content().endswith(numbers(after // 4, 40_000 - after // 4))


def test_large_log_moves_a_tail_of_bounded_size() -> None:
    """A cap of gigabytes must not make every compaction read gigabytes."""
    log = OutputLog("job1", 16 * 1024 * 1024, fresh=True)
    chunk = b"x" * 1024 * 1024
    for _ in range(16):
        log.write(chunk)
    with mock.patch.object(output_log, "_write_all", wraps=output_log._write_all) as written:
        log.write(b"y")
    log.close()
    assert max(len(call.args[1]) for call in written.call_args_list) < 3 * 1024 * 1024


@contextmanager
def fresh_home() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, QUEUECTL_HOME=folder):
        yield


Pieces = list[tuple[bool, int]]
"""What one attempt writes: whether it is a heading, and its length."""

attempts_of_pieces = st.lists(
    st.lists(st.tuples(st.booleans(), st.integers(0, 5000)), max_size=20), min_size=1, max_size=4
)


@given(attempts_of_pieces, st.integers(SMALLEST, 6000))
@example([[(False, SMALLEST), (False, 0), (True, 0)]], SMALLEST)
@example([[(False, SMALLEST // 2)], [(False, SMALLEST // 2)], [(False, 1)]], SMALLEST)
def test_any_sequence_of_writes_keeps_the_true_head_and_tail(attempts: list[Pieces], limit: int) -> None:
    with fresh_home():
        stream = b""
        for number, pieces in enumerate(attempts):
            log = OutputLog("job1", limit, fresh=number == 0)
            output = b""
            for is_heading, size in pieces:
                if is_heading:
                    text = numbers(size % 100, len(stream)).decode().replace("\n", " ")
                    log.heading(text)
                    stream += f"--- {text} ---\n".encode()
                else:
                    data = numbers(size, len(stream))
                    log.write(data)
                    output += data
                    stream += data
                check(content(), stream, limit)
            assert log.tail == output[-TAIL_BYTES:]
            log.close()


@given(st.lists(st.binary(max_size=3000), max_size=10))
def test_any_bytes_are_kept_as_they_are(parts: list[bytes]) -> None:
    with fresh_home():
        log = OutputLog("job1", 4096, fresh=True)
        for part in parts:
            log.write(part)
        log.close()
        check(content(), b"".join(parts), 4096)
        log.tail_text().encode()


# Following a log.


def follow_to(follower: Follower, limit: int) -> bytes:
    return b"".join(iter(lambda: follower.read(limit), b""))


def check_followed(printed: bytes, stream: bytes) -> None:
    """Everything once and in order; what was never seen is counted where it is missing."""
    place = 0
    for index, part in enumerate(MARK.split(printed)):
        if index % 2:
            place += int(part)
        else:
            assert stream[place : place + len(part)] == part, f"wrong from byte {place} on"
            place += len(part)
    assert place == len(stream)


@given(st.lists(st.tuples(st.integers(0, 3000), st.booleans()), max_size=30), st.integers(SMALLEST, 6000))
@example([(900, True), (2000, True), (10_000, False), (1, True)], SMALLEST)
def test_follower_prints_everything_once_and_counts_what_it_missed(
    steps: list[tuple[int, bool]], limit: int
) -> None:
    with fresh_home():
        log = OutputLog("job1", limit, fresh=True)
        stream = printed = b""
        follower = Follower(log_path("job1"))
        for size, look in steps:
            log.write(numbers(size, len(stream)))
            stream += numbers(size, len(stream))
            if look:
                printed += follow_to(follower, limit)
                check_followed(printed, stream)
        printed += follow_to(follower, limit)
        log.close()
        check_followed(printed, stream)


@given(st.lists(st.integers(0, 1500), max_size=20))
@example([1024, 1, 500, 600])
def test_follower_that_looks_in_the_middle_of_a_compaction_is_not_misled(sizes: list[int]) -> None:
    """It looks after every single write to the file, also when a compaction has only begun."""
    with fresh_home():
        log = OutputLog("job1", SMALLEST, fresh=True)
        stream = printed = b""
        follower = Follower(log_path("job1"))
        write_all = output_log._write_all

        def write_and_look(file: BinaryIO, data: bytes) -> int:
            nonlocal printed
            length = write_all(file, data)
            printed += follow_to(follower, SMALLEST)
            return length

        with mock.patch.object(output_log, "_write_all", write_and_look):
            for size in sizes:
                log.write(numbers(size, len(stream)))
                stream += numbers(size, len(stream))
        printed += follow_to(follower, SMALLEST)
        log.close()
        check_followed(printed, stream)


def test_follower_goes_on_when_the_limit_is_lowered_meanwhile() -> None:
    with fresh_home():
        log = OutputLog("job1", 8 * SMALLEST, fresh=True)
        log.write(numbers(7 * SMALLEST, 0))
        follower = Follower(log_path("job1"))
        assert follow_to(follower, 8 * SMALLEST) == numbers(7 * SMALLEST, 0)
        log.close()
        log = OutputLog("job1", SMALLEST, fresh=False)
        log.write(b"the next attempt\n")
        assert follow_to(follower, SMALLEST).endswith(b"the next attempt\n")
        log.close()


# The tail as text.


def test_tail_is_the_last_part_of_the_output() -> None:
    log = OutputLog("job1", SMALLEST, fresh=True)
    log.write(numbers(100_000))
    log.write(b"last words")
    log.close()
    assert len(log.tail) == TAIL_BYTES
    assert log.tail_text() == (numbers(100_000) + b"last words")[-TAIL_BYTES:].decode()


@pytest.mark.parametrize("character", ["é", "€", "🎈"])
def test_tail_that_begins_inside_a_character_begins_with_the_next(character: str) -> None:
    for shift in range(len(character.encode())):
        log = OutputLog("job1", SMALLEST, fresh=True)
        log.write(character.encode() * 10_000 + b"." * shift)
        log.close()
        text = log.tail_text()
        assert set(text) <= {character, "."}, "a character was torn"
        assert len(text.encode()) > TAIL_BYTES - len(character.encode())


def test_short_tail_that_begins_with_odd_bytes_keeps_them() -> None:
    log = OutputLog("job1", SMALLEST, fresh=True)
    log.write(b"\x80\x81 odd")
    log.close()
    assert log.tail_text() == "�� odd"


def test_tail_of_binary_output_is_not_taken_for_the_rest_of_a_character() -> None:
    log = OutputLog("job1", SMALLEST, fresh=True)
    log.write(b"\x9f" * 100_000)
    log.close()
    assert len(log.tail_text()) >= TAIL_BYTES - 3


def test_tail_cut_inside_a_character_at_its_end_can_be_stored() -> None:
    log = OutputLog("job1", SMALLEST, fresh=True)
    log.write("done €".encode()[:-1])
    log.close()
    assert log.tail_text() == "done �"


def test_nul_bytes_are_kept_in_the_file_and_shown_in_the_tail() -> None:
    log = OutputLog("job1", SMALLEST, fresh=True)
    log.write(b"a\x00b")
    log.close()
    assert content() == b"a\x00b"
    assert log.tail_text() == "a␀b"


# Trouble costs output, never the job.


def test_folder_that_cannot_be_made_costs_the_output_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("QUEUECTL_HOME", str(tmp_path / "file"))
    log = OutputLog("job1", SMALLEST, fresh=True)
    log.heading("attempt 1")
    log.write(b"output")
    log.end("exit code 0")
    assert log.tail_text() == "output"
    assert log.trouble == f"the output could not be stored: {os.strerror(errno.EEXIST)}"


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.EMFILE, errno.EDQUOT])
def test_file_that_cannot_be_opened_costs_the_output_alone(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Root may write anywhere, so the refusal is staged."""

    def refuse(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "open", refuse)
    log = OutputLog("job1", SMALLEST, fresh=True)
    log.heading("attempt 1")
    log.write(b"output")
    log.end("exit code 0")
    assert log.tail_text() == "output"
    assert log.trouble == f"the output could not be stored: {os.strerror(code)}"


def test_folder_in_place_of_the_file_costs_the_output_alone(home: Path) -> None:
    (home / "logs" / "job1.log").mkdir(parents=True)
    log = OutputLog("job1", SMALLEST, fresh=True)
    log.write(b"output")
    log.end("exit code 0")
    assert log.tail_text() == "output"
    assert log.trouble is not None


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no device that is always full")
def test_full_disk_costs_the_output_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    # Not by its path: whoever takes a log over copies it, and this one never ends.
    full = open("/dev/full", "r+b", buffering=0)  # noqa: SIM115 -- the log closes it
    monkeypatch.setattr(output_log, "_take_over", lambda path, fresh: full)
    log = OutputLog("job1", SMALLEST, fresh=False)
    log.heading("attempt 1")
    log.write(b"output")
    log.write(numbers(10 * SMALLEST))
    log.end("exit code 0")
    assert log.tail_text() == numbers(10 * SMALLEST)[-TAIL_BYTES:].decode()
    assert log.trouble == f"the output could not be stored: {os.strerror(errno.ENOSPC)}"


@pytest.mark.parametrize("failing", range(1, 8))
def test_disk_that_fills_up_at_any_write_leaves_what_was_there(
    monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    count = 0

    def write_all(file: BinaryIO, data: bytes) -> int:
        nonlocal count
        count += 1
        if count >= failing:
            file.write(data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        file.write(data)
        return len(data)

    monkeypatch.setattr(output_log, "_write_all", write_all)
    log = OutputLog("job1", SMALLEST, fresh=True)
    for start in range(0, 4000, 400):
        log.write(numbers(400, start))
    log.end("exit code 0")
    assert log.trouble is not None
    assert log.tail == numbers(4000)
    stored = content()
    assert len(stored) <= SMALLEST
    assert stored[: SMALLEST // 2] == numbers(4000)[: min(len(stored), SMALLEST // 2)]


def test_thread_that_can_not_be_started_costs_other_machines_a_delay_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(timer: threading.Timer) -> None:
        raise RuntimeError("can't start new thread")

    kept: list[tuple[int, bytes]] = []
    log = OutputLog("job1", SMALLEST, fresh=True)
    shared = SharedTail(log, lambda length, tail: kept.append((length, tail)))
    monkeypatch.setattr(threading.Timer, "start", refuse)
    shared.write(b"first\n")
    shared.write(b"second\n")
    log.close()
    shared.flush()
    assert kept == [(13, b"first\nsecond\n")]


def test_log_that_is_removed_meanwhile_harms_nothing() -> None:
    log = OutputLog("job1", SMALLEST, fresh=True)
    log.write(b"output")
    os.unlink(log_path("job1"))
    log.write(numbers(10 * SMALLEST))
    log.end("exit code 0")
    assert log.trouble is None


def test_log_that_is_emptied_meanwhile_harms_nothing() -> None:
    log = OutputLog("job1", SMALLEST, fresh=True)
    log.write(numbers(900))
    os.truncate(log_path("job1"), 0)
    log.write(numbers(10 * SMALLEST))
    log.end("exit code 0")
    assert len(content()) <= SMALLEST


# Who may read it, and where it goes.


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_log_is_for_its_owner_alone(home: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        OutputLog("job1", SMALLEST, fresh=True).close()
    finally:
        os.umask(before)
    assert stat.S_IMODE((home / "logs" / "job1.log").stat().st_mode) == 0o600
    assert stat.S_IMODE((home / "logs").stat().st_mode) == 0o700


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("fresh", [True, False])
def test_link_in_place_of_the_file_is_not_followed(home: Path, exists: bool, fresh: bool) -> None:
    target = home / "precious"
    (home / "logs").mkdir(parents=True)
    if exists:
        target.write_bytes(b"precious")
    (home / "logs" / "job1.log").symlink_to(target)
    log = OutputLog("job1", SMALLEST, fresh=fresh)
    log.write(b"output")
    log.end("exit code 0")
    assert (target.read_bytes() if exists else target.exists()) == (b"precious" if exists else False)
    assert log.tail_text() == "output"
    assert (log.trouble is None) is fresh, "the link is put aside, or the output not kept"


@pytest.mark.parametrize("fresh", [True, False])
def test_pipe_in_place_of_the_file_does_not_hold_up_the_job(home: Path, fresh: bool) -> None:
    (home / "logs").mkdir(parents=True)
    os.mkfifo(home / "logs" / "job1.log")
    log = OutputLog("job1", SMALLEST, fresh=fresh)
    log.write(numbers(200_000))
    log.end("exit code 0")
    assert log.tail == numbers(200_000)[-TAIL_BYTES:]
    assert (home / "logs" / "job1.log").is_file(), "it was put aside"


def test_earlier_attempt_that_does_not_know_that_it_is_over_changes_nothing(home: Path) -> None:
    """A worker that was suspended finds its job taken by another, whose log it must leave alone."""
    first = OutputLog("job1", SMALLEST, fresh=True)
    first.heading("attempt 1")
    first.write(b"one\n")
    second = OutputLog("job1", SMALLEST, fresh=False)
    second.heading("attempt 2")
    first.write(numbers(10 * SMALLEST))
    first.end("killed by signal 9")
    second.write(b"two\n")
    second.end("exit code 0")
    kept = (home / "logs" / "job1.log").read_bytes()
    assert kept == b"--- attempt 1 ---\none\n--- attempt 2 ---\ntwo\n--- exit code 0 ---\n"
    assert [path.name for path in (home / "logs").iterdir()] == ["job1.log"]


def test_no_descriptor_is_left_open(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = open_files()
    for job_id in ("kept", "pipe"):
        if job_id == "pipe":
            os.mkfifo(home / "logs" / "pipe.log")
        log = OutputLog(job_id, SMALLEST, fresh=True)
        log.write(b"output")
        log.end("exit code 0")
        log.close()
    assert not open_files() - before


@pytest.mark.parametrize("job_id", ["a", "job1", "A.b_c:d-e", "x" * 128, "0.."])
def test_every_id_has_a_log_inside_the_folder(home: Path, job_id: str) -> None:
    OutputLog(job_id, SMALLEST, fresh=True).end("exit code 0")
    assert [path.name for path in (home / "logs").iterdir()] == [f"{job_id}.log"]
