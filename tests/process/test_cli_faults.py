"""queuectl in trouble: full and read-only disks, locked files, closed outputs, odd terminals, and Ctrl-C."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

import pytest

from holdfast import Queue
from holdfast.store.open import store_of
from holdfast.store.records import StopRequest, WorkerRecord
from tests.process.nursery import Nursery
from tests.process.test_full_disk import Disk
from tests.support import wait_until
from tests.surfaces.support import QUEUECTL, Ran, environment, queuectl, start_queuectl, terminal

FAILED, WRONG_USAGE, INTERRUPTED = 1, 2, 130
TEXT = "naïve 名前 🎉"
PATIENCE = 5.0
"""Seconds that a writer waits for the lock."""

READS: list[tuple[str, ...]] = [
    ("list",),
    ("list", "--full", "--json"),
    ("show", "wait1"),
    ("why", "wait1"),
    ("status",),
    ("report",),
    ("dlq", "list"),
    ("worker", "list"),
    ("config", "list"),
    ("logs", "wait1"),
]
WRITES: list[tuple[str, ...]] = [
    ("enqueue", "--command", "true"),
    ("enqueue", "--file", "-"),
    ("retry", "gone1"),
    ("cancel", "wait1"),
    ("delete", "dead1"),
    ("dlq", "retry", "--all"),
    ("dlq", "purge", "--older-than", "0"),
    ("cleanup", "--older-than", "0"),
    ("pause",),
    ("rate-limit", "5"),
    ("config", "set", "max_attempts", "5"),
]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def url(home: Path) -> str:
    return f"sqlite:///{home / 'queue.db'}"


@pytest.fixture
def stocked(home: Path, queue: Queue) -> Path:
    """The home with a job that waits, one that is dead, one that is cancelled, and no connection open."""
    stock(queue)
    queue.close()
    return home


@pytest.fixture(scope="module")
def forked() -> Iterator[Nursery]:
    """Runs queuectl in processes that need not load it."""
    with closing(Nursery()) as nursery:
        yield nursery


@pytest.fixture(scope="module")
def unprivileged() -> Iterator[Nursery]:
    """The same, for whom permissions hold."""
    with closing(Nursery(*without_privileges())) as nursery:
        yield nursery


@pytest.fixture(scope="module")
def unloaded() -> Iterator[Nursery]:
    """The same, for programs that load what they need themselves."""
    with closing(Nursery(loads=False)) as nursery:
        yield nursery


def without_privileges() -> list[str]:
    """The words before a command that make permissions hold for root, too."""
    return ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all"] if os.geteuid() == 0 else []


def stock(queue: Queue) -> None:
    queue.enqueue("nonsense", {"a": TEXT}, id="dead1", max_attempts=1)
    queue.enqueue("shell", {"command": "true"}, id="gone1")
    queue.cancel("gone1")

    def fail(payload: object) -> None:
        raise RuntimeError(TEXT)

    queue.register("nonsense", fail)
    queue.drain()
    queue.enqueue("shell", {"command": f"echo {TEXT}"}, id="wait1")


def check_one_line(ran: Ran, code: int) -> None:
    assert ran.code == code, ran
    assert ran.out == "", ran
    assert ran.err.startswith("queuectl: "), ran
    assert ran.err.count("\n") == 1, ran
    assert ran.err.endswith("\n"), ran


def all_of(
    forked: Nursery, home: Path, lines: Sequence[tuple[str, ...]]
) -> Iterator[tuple[tuple[str, ...], Ran]]:
    for words in lines:
        yield words, forked(home, *words, stdin=b'{"command": "true"}\n' * 3)


def states(home: Path) -> dict[str, str]:
    connection = sqlite3.connect(home / "queue.db")
    try:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return dict(connection.execute("SELECT id, status FROM holdfast_jobs"))
    finally:
        connection.close()


def count(home: Path) -> int:
    return len(states(home))


# Disks and permissions.


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    path = tmp_path / "disk"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", path], check=True)
    yield Disk(path)
    subprocess.run(["umount", "--lazy", path], check=True)


def test_on_a_full_disk_writes_say_so_and_reads_work_while_somebody_has_the_database_open(
    disk: Disk, forked: Nursery
) -> None:
    home = disk.path
    with Queue(f"sqlite:///{home / 'queue.db'}") as queue:
        stock(queue)
        before = states(home)
        disk.fill()
        for _, ran in all_of(forked, home, WRITES):
            check_one_line(ran, FAILED)
            assert "disk is full" in ran.err, ran
        for words, ran in all_of(forked, home, READS):
            assert ran.code == 0, (words, ran)
            assert ran.err == "", (words, ran)
        ran = queuectl(home, "doctor")
        assert ran.code == FAILED
        assert "problem\tfree space" in ran.out, ran
        assert states(home) == before
        disk.free()
        assert queuectl(home, "enqueue", "--command", "true", "--id", "after1").out == "after1\n"
        assert set(states(home)) == {*before, "after1"}


def test_on_a_full_disk_that_nobody_uses_every_command_says_so_and_nothing_is_lost(
    disk: Disk, forked: Nursery
) -> None:
    home = disk.path
    with Queue(f"sqlite:///{home / 'queue.db'}") as queue:
        stock(queue)
    before = states(home)
    disk.fill()
    workers = [("worker", "start"), ("worker", "start", "--detach")]
    for words, ran in all_of(forked, home, [*WRITES, *READS, *workers]):
        if ran.code or words not in READS:
            check_one_line(ran, FAILED)
            assert "disk is full" in ran.err or "No space left" in ran.err, (words, ran)
    ran = queuectl(home, "doctor")
    assert ran.code == FAILED
    assert "disk is full" in ran.out, ran
    disk.free()
    assert states(home) == before
    assert queuectl(home, "cancel", "wait1").code == 0


def test_a_first_job_on_a_full_disk_leaves_a_database_that_works_later(disk: Disk) -> None:
    disk.fill()
    check_one_line(queuectl(disk.path, "enqueue", "--command", "true"), FAILED)
    disk.free()
    assert queuectl(disk.path, "enqueue", "--command", "true", "--id", "job1").out == "job1\n"
    assert states(disk.path) == {"job1": "pending"}


def test_a_bulk_that_fills_the_disk_stores_nothing(disk: Disk) -> None:
    home = disk.path
    assert queuectl(home, "enqueue", "--command", "true").code == 0
    line = json.dumps({"type": "echo", "payload": {"a": "x" * 10_000}}) + "\n"
    ran = queuectl(home, "enqueue", "--file", "-", input=line * 1000)
    check_one_line(ran, FAILED)
    assert "disk is full" in ran.err, ran
    assert count(home) == 1
    assert queuectl(home, "enqueue", "--command", "true").code == 0


def test_a_bulk_whose_temporary_folder_is_full_stores_nothing(stocked: Path, disk: Disk) -> None:
    disk.fill()
    ballast = disk.path / "ballast"
    os.truncate(ballast, ballast.stat().st_size - 65_536)  # an empty folder without any space is passed over
    line = json.dumps({"type": "echo", "payload": {"a": "x" * 10_000}}) + "\n"
    ran = queuectl(stocked, "enqueue", "--file", "-", input=line * 200, env={"TMPDIR": str(disk.path)})
    check_one_line(ran, FAILED)
    assert "space" in ran.err, ran
    assert count(stocked) == 3


def test_a_backup_to_a_full_disk_leaves_nothing_behind(stocked: Path, disk: Disk) -> None:
    disk.fill()
    check_one_line(queuectl(stocked, "backup", str(disk.path / "copy.db")), FAILED)
    assert [path.name for path in disk.path.iterdir()] == ["ballast"]


def test_on_a_disk_that_became_read_only_writes_fail_in_one_line(disk: Disk, forked: Nursery) -> None:
    home = disk.path
    with Queue(f"sqlite:///{home / 'queue.db'}") as queue:
        stock(queue)
    subprocess.run(["mount", "-o", "remount,ro", home], check=True)
    for words, ran in all_of(forked, home, [*WRITES, *READS]):
        if ran.code or words in WRITES:
            check_one_line(ran, FAILED)
    subprocess.run(["mount", "-o", "remount,rw", home], check=True)
    assert states(home) == {"dead1": "failed", "gone1": "cancelled", "wait1": "pending"}


@pytest.mark.parametrize(
    ("target", "mode"),
    [("queue.db", 0o000), ("queue.db", 0o444), (".", 0o555), (".", 0o000)],
    ids=["unreadable file", "read-only file", "read-only folder", "closed folder"],
)
def test_without_permission_writes_fail_in_one_line_and_nothing_changes(
    stocked: Path, unprivileged: Nursery, target: str, mode: int
) -> None:
    before = states(stocked)
    path = stocked / target
    usual = path.stat().st_mode
    path.chmod(mode)
    try:
        for words, ran in all_of(unprivileged, stocked, [*WRITES, *READS]):
            if ran.code or words in WRITES or mode == 0o000:
                check_one_line(ran, FAILED)
        for words in (("doctor",), ("worker", "start", "--detach")):
            if mode != 0o444 or words == ("doctor",):
                ran = unprivileged(stocked, *words)
                assert ran.code == FAILED, ran
                assert "Traceback" not in ran.out + ran.err, ran
    finally:
        path.chmod(usual)
    assert states(stocked) == before


def test_a_writer_that_finds_the_database_locked_gives_up_after_its_patience(
    stocked: Path, forked: Nursery
) -> None:
    before = states(stocked)
    holder = sqlite3.connect(stocked / "queue.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    try:
        for _, ran in all_of(forked, stocked, READS[:4]):
            assert ran.code == 0, ran
        lines = [WRITES[0], WRITES[1], ("config", "set", "max_attempts", "5"), ("cancel", "wait1", "gone1")]
        began = time.monotonic()
        writers = [forked.start(stocked, *words, stdin=b'{"command": "true"}') for words in lines]
        runs = [writer.finish() for writer in writers]
        took = time.monotonic() - began
    finally:
        holder.close()
    for ran in runs:
        check_one_line(ran, FAILED)
        assert "locked" in ran.err, ran
    assert took >= PATIENCE
    assert states(stocked) == before


@pytest.mark.parametrize("how", [(), ("--detach",)], ids=["in front", "detached"])
def test_an_error_of_the_application_is_one_line_that_can_be_shown(
    stocked: Path, tmp_path: Path, how: tuple[str, ...]
) -> None:
    (tmp_path / "broken.py").write_text("raise RuntimeError('\\x1b[31m\\n\\nbroken')\n")
    ran = queuectl(stocked, "worker", "start", "--app", "broken:q", *how, cwd=tmp_path)
    check_one_line(ran, WRONG_USAGE)
    assert ran.err.rstrip("\n").isprintable(), ran


@pytest.mark.parametrize("how", [(), ("--detach",)], ids=["in front", "detached"])
def test_a_worker_whose_home_is_a_file_does_not_start(tmp_path: Path, how: tuple[str, ...]) -> None:
    home = tmp_path / "file"
    home.touch()
    ran = queuectl(home, "worker", "start", *how)
    check_one_line(ran, FAILED)


# Outputs.


def redirected(
    forked: Nursery, home: Path, redirection: str, *words: str, env: dict[str, str | None] | None = None
) -> Ran:
    """Run queuectl with some of its streams closed or on a full disk, as the words of a shell say."""
    numbers = {word: "<>2".index(word[0]) for word in redirection.split()}
    closed = [number for word, number in numbers.items() if word.endswith("&-")]
    full = [number for word, number in numbers.items() if word.endswith("/dev/full")]
    return forked.start(home, *words, closed=closed, full=full, env=env).finish()


def redirected_by_shell(
    home: Path, redirection: str, *words: str, env: dict[str, str | None] | None = None
) -> Ran:
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", *QUEUECTL, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=environment(home, **(env or {})),
        timeout=30,
        check=False,
    )
    return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.mark.parametrize(
    ("redirection", "words", "unbuffered"),
    [
        (">&-", ("list", "--json"), None),
        ("2>&-", ("nonsense",), None),
        ("<&- >&- 2>&-", ("show", "nonsense"), None),
        (">/dev/full", ("config", "list"), None),
        (">/dev/full", ("config", "list"), "1"),
        (">/dev/full 2>/dev/full", ("worker", "start", "--drain"), None),
    ],
)
def test_what_a_shell_redirects_is_to_a_program_as_to_those_forked_here(
    stocked: Path, forked: Nursery, redirection: str, words: tuple[str, ...], unbuffered: str | None
) -> None:
    env: dict[str, str | None] = {"PYTHONUNBUFFERED": unbuffered}
    real = redirected_by_shell(stocked, redirection, *words, env=env)
    assert str(real) == str(redirected(forked, stocked, redirection, *words, env=env))


@pytest.mark.parametrize(
    "words", [("list",), ("list", "--json"), ("status",), ("--help",), ("show", "wait1")]
)
def test_with_its_output_closed_a_command_ends_quietly(
    stocked: Path, forked: Nursery, words: tuple[str, ...]
) -> None:
    ran = redirected(forked, stocked, ">&-", *words)
    assert ran.code in (0, FAILED), ran
    assert ran.err.count("\n") == ran.code, ran
    assert "Traceback" not in ran.err


def test_a_job_enqueued_with_the_output_closed_is_stored_once(stocked: Path) -> None:
    ran = redirected_by_shell(stocked, ">&-", "enqueue", "--command", "true", "--id", "job1")
    assert ran.code in (0, FAILED), ran
    assert "Traceback" not in ran.err
    assert states(stocked)["job1"] == "pending"


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full", ">&- 2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(
    ("words", "code"),
    [(("show", "nonsense"), FAILED), (("nonsense",), WRONG_USAGE), (("list", "--x"), WRONG_USAGE)],
)
def test_the_exit_code_is_right_when_nobody_can_be_told(
    stocked: Path, forked: Nursery, redirection: str, words: tuple[str, ...], code: int
) -> None:
    ran = redirected(forked, stocked, redirection, *words)
    assert ran.code == code, ran
    assert ran.out == ran.err == ""


@pytest.mark.parametrize(
    ("redirection", "unbuffered"),
    [
        (">&-", None),
        ("2>&-", None),
        ("<&- >&- 2>&-", None),
        (">/dev/full", None),
        (">/dev/full", "1"),
        (">/dev/full 2>/dev/full", "1"),
    ],
)
def test_workers_drain_whatever_becomes_of_their_output(
    stocked: Path, forked: Nursery, redirection: str, unbuffered: str | None
) -> None:
    env = {"PYTHONUNBUFFERED": unbuffered}
    ran = redirected(forked, stocked, redirection, "worker", "start", "--drain", env=env)
    assert ran.code == 0, ran
    assert "Traceback" not in ran.out + ran.err
    assert states(stocked)["wait1"] == "completed"


def test_the_output_is_whole_when_errors_can_not_be_told(stocked: Path, forked: Nursery) -> None:
    ran = redirected(forked, stocked, "2>&-", "list", "--json")
    assert ran.code == 0
    assert ran.json["total"] == 3


def test_a_bulk_from_a_closed_standard_input_is_an_error_and_stores_nothing(stocked: Path) -> None:
    ran = redirected_by_shell(stocked, "<&-", "enqueue", "--file", "-")
    assert "Traceback" not in ran.err
    assert ran.err.count("\n") == (1 if ran.code else 0), ran
    assert count(stocked) == 3


@pytest.mark.parametrize("unbuffered", [None, "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize(
    "words",
    [
        ("list",),
        ("list", "--json"),
        ("status",),
        ("--help",),
        ("list", "--help"),
        ("enqueue", "--command", "x"),
    ],
)
def test_output_that_can_not_be_written_is_one_line_and_exit_code_1(
    stocked: Path, forked: Nursery, words: tuple[str, ...], unbuffered: str | None
) -> None:
    ran = redirected(forked, stocked, ">/dev/full", *words, env={"PYTHONUNBUFFERED": unbuffered})
    check_one_line(ran, FAILED)


def test_a_reader_that_has_seen_enough_is_no_error(stocked: Path, queue: Queue) -> None:
    queue.enqueue_many("echo", ({"a": "x" * 100} for _ in range(3000)))
    for words in (("list",), ("list", "--json"), ("list", "--full")):
        process = start_queuectl(stocked, *words, "--limit", "5000")
        assert process.stdout is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert finished(process).err == "", words
        assert process.returncode == 0, words


def test_a_watch_ends_when_its_reader_goes_away(stocked: Path) -> None:
    process = start_queuectl(stocked, "status", "--watch", "--json")
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["pending"] == 1
    process.stdout.close()
    assert finished(process).err == ""
    assert process.returncode == 0


def finished(process: subprocess.Popen[bytes], timeout: float = 30.0) -> Ran:
    """What came of a program once it has ended; one that does not is killed."""
    try:
        out, err = b"", b""
        if process.stdout is not None and not process.stdout.closed:
            out, err = process.communicate(timeout=timeout)
        elif process.stderr is not None:
            process.wait(timeout)
            err = process.stderr.read()
        return Ran(process.wait(timeout), out.decode(), err.decode())
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


LOCALES: list[dict[str, str | None]] = [
    {"PYTHONIOENCODING": "ascii"},
    {"PYTHONIOENCODING": "latin-1"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    {"LANG": "C", "LC_ALL": None},
]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_any_encoding_of_the_output_will_do(stocked: Path, forked: Nursery, encoding: str) -> None:
    for words in (
        ("list",),
        ("show", "dead1"),
        ("report",),
        ("dlq", "list", "--full"),
        ("status",),
        ("doctor",),
    ):
        ran = forked.start(stocked, *words, env={"PYTHONIOENCODING": encoding}).finish(encoding)
        assert ran.code == 0 or words == ("doctor",), ran
        assert "Traceback" not in ran.err, ran


@pytest.mark.parametrize("variables", LOCALES, ids=str)
def test_any_locale_will_do(stocked: Path, variables: dict[str, str | None]) -> None:
    ran = queuectl_bytes(stocked, "show", "dead1", env=variables)
    assert (ran.code, ran.err) == (0, "")
    shown = queuectl_bytes(stocked, "show", "dead1", "--json", env=variables).json
    assert shown["payload"] == {"a": TEXT}
    ran = queuectl_bytes(stocked, "show", TEXT, env=variables)
    assert ran.code in (FAILED, WRONG_USAGE), ran
    assert ran.err.count("\n") == 1, ran


def queuectl_bytes(home: Path, *words: str, env: dict[str, str | None]) -> Ran:
    """Run queuectl whatever the encoding of its output is."""
    done = subprocess.run(
        [*QUEUECTL, *words], capture_output=True, env=environment(home, **env), timeout=60, check=False
    )
    encoding = env.get("PYTHONIOENCODING") or "utf-8"
    return Ran(done.returncode, done.stdout.decode(encoding), done.stderr.decode(encoding))


@pytest.mark.parametrize(
    ("width", "height", "variables"),
    [
        (80, 24, {"TERM": "dumb"}),
        (80, 24, {"TERM": ""}),
        (80, 24, {"TERM": "nonsense"}),
        (20, 24, {}),
        (1, 1, {}),
        (0, 0, {}),
        (80, 24, {"COLUMNS": "20"}),
        (80, 24, {"COLUMNS": "0", "LINES": "0"}),
        (80, 24, {"COLUMNS": "nonsense", "LINES": "-5"}),
        (500, 5, {"PYTHONIOENCODING": "ascii"}),
    ],
    ids=str,
)
def test_any_terminal_will_do(
    stocked: Path, forked: Nursery, width: int, height: int, variables: dict[str, str]
) -> None:
    lines = [
        ("list",),
        ("show", "dead1"),
        ("status",),
        ("report",),
        ("config", "list"),
        ("doctor",),
        ("why", "wait1"),
    ]
    for words in lines:
        ran = forked.on_terminal(stocked, *words, width=width, height=height, env=variables)
        assert ran.code == (FAILED if words == ("doctor",) else 0), (words, ran)
        assert not any(line.startswith("Traceback") for line in ran.lines), (words, ran)
        assert ran.text.strip() or width == 1, words


def test_a_bulk_with_a_progress_bar_on_a_narrow_dumb_terminal_works(
    stocked: Path, forked: Nursery, tmp_path: Path
) -> None:
    file = tmp_path / "jobs.jsonl"
    file.write_text('{"command": "true"}\n' * 500)
    for variables in ({"TERM": "dumb"}, {"COLUMNS": "10"}, {"PYTHONIOENCODING": "ascii"}):
        ran = forked.on_terminal(stocked, "enqueue", "--file", str(file), width=80, height=24, env=variables)
        assert ran.code == 0, ran
        assert "Traceback" not in ran.out


def test_a_terminal_that_is_closed_ends_a_watch(stocked: Path) -> None:
    screen = terminal(stocked, "status", "--watch")
    try:
        screen.read_until("Ctrl-C")
        screen.hang_up()
        wait_until(lambda: screen._process.poll() is not None, timeout=30, message="the watch has ended")
    finally:
        screen.close()


# Ctrl-C. What happens before queuectl's own main() begins is the interpreter's and the installer's: there
# Ctrl-C ends the process with a signal, and Python may say where it was.

INSTANTS = 10
LINES = 1000


class Run:
    """A queuectl program that is stopped nowhere before its own code has begun."""

    def __init__(self, unloaded: Nursery, home: Path, *words: str, stdin: bytes | int = b"") -> None:
        ours, theirs = os.pipe()
        with open(theirs, "wb"):
            self._process = unloaded.start(home, *words, stdin=stdin, at_main=theirs)
        os.read(ours, 1)  # at its end, main() has begun
        os.close(ours)
        self.began = time.monotonic()

    def interrupt(self, after: float, times: int = 1) -> Ran:
        time.sleep(max(0.0, self.began + after - time.monotonic()))
        for _ in range(times):
            self._process.signal(signal.SIGINT)
        return self.finish()

    def finish(self) -> Ran:
        return self._process.finish()


def instants(unloaded: Nursery, home: Path, *words: str) -> list[float]:
    """Seconds after the beginning of a command, by chance, one in each part of the time that it takes."""
    run = Run(unloaded, home, *words)
    assert run.finish().code == 0
    longest = time.monotonic() - run.began
    return [longest * (number + random.random()) / INSTANTS for number in range(INSTANTS)]


@pytest.mark.parametrize("words", [("enqueue", "--command", "true"), ("list",), ("report", "--json")])
def test_ctrl_c_at_any_instant_ends_a_command_without_a_word(
    stocked: Path, unloaded: Nursery, words: tuple[str, ...]
) -> None:
    """Pressed once and, every other time, twice."""
    moments = instants(unloaded, stocked, *words)
    before = count(stocked)
    codes = []
    for number, moment in enumerate(moments):
        ran = Run(unloaded, stocked, *words).interrupt(moment, times=1 + number % 2)
        codes.append(ran.code)
        assert ran.code in (0, INTERRUPTED), ran
        assert ran.err == "", (moment, ran)
        if words[0] == "enqueue" and ran.code == 0:
            assert states(stocked)[ran.out.strip()] == "pending"
    assert INTERRUPTED in codes
    if words[0] == "enqueue":
        assert before + codes.count(0) <= count(stocked) <= before + INSTANTS


_IN_A_FINALIZER = """
import os, signal, sys

class Finalized:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(100):
            pass

class Border:
    def find_spec(self, name, path=None, target=None):
        if name == "holdfast.cli.main":
            sys.meta_path.remove(self)
            Finalized()

from holdfast.cli import main
sys.meta_path.insert(0, Border())
main()
"""


def test_ctrl_c_where_python_can_raise_nothing_is_not_swallowed(stocked: Path) -> None:
    words = [sys.executable, "-c", _IN_A_FINALIZER, "enqueue", "--command", "true"]
    done = subprocess.run(words, capture_output=True, env=environment(stocked), timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (INTERRUPTED, b"", b"")
    assert count(stocked) == 3


_IN_AN_IMPORT = """
import os, signal, sys

class Import:
    def find_spec(self, name, path=None, target=None):
        if name != "holdfast.cli.enqueue":
            return
        sys.meta_path.remove(self)
        failed = ImportError("as some imports say it")
        try:
            {interrupt}
        except KeyboardInterrupt:
            {fail_within}
        raise failed

sys.meta_path.insert(0, Import())
from holdfast.cli import main
main()
"""


@pytest.mark.parametrize(
    ("interrupt", "fail_within"),
    [("os.kill(os.getpid(), signal.SIGINT)", "pass"), ("raise KeyboardInterrupt", "raise failed")],
    ids=["after it", "because of it"],
)
def test_ctrl_c_that_an_import_turns_into_another_error_is_still_a_ctrl_c(
    stocked: Path, interrupt: str, fail_within: str
) -> None:
    program = _IN_AN_IMPORT.format(interrupt=interrupt, fail_within=fail_within)
    words = [sys.executable, "-c", program, "enqueue", "--command", "true"]
    done = subprocess.run(words, capture_output=True, env=environment(stocked), timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (INTERRUPTED, b"", b"")
    assert count(stocked) == 3


_IN_DATETIME = """
import sys

class Import:
    def find_spec(self, name, path=None, target=None):
        if name == "datetime":
            sys.meta_path.remove(self)
            raise KeyboardInterrupt

sys.meta_path.insert(0, Import())
from holdfast.cli import main
main()
"""


@pytest.mark.parametrize("words", ["enqueue --command true", "backup copy.db", "worker list"])
def test_ctrl_c_while_datetime_is_imported_is_no_segmentation_fault(stocked: Path, words: str) -> None:
    """As it is in msgspec, if that is the first to import it."""
    command = [sys.executable, "-S", "-c", _IN_DATETIME, *words.split()]
    path = os.pathsep.join(path for path in sys.path if path)
    env = {**environment(stocked), "PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, env=env, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (INTERRUPTED, b"", b"")


@pytest.mark.parametrize("chunk", [LINES, 250])
def test_ctrl_c_at_any_instant_stores_whole_chunks_of_a_bulk_or_none(
    stocked: Path, unloaded: Nursery, tmp_path: Path, chunk: int
) -> None:
    file = tmp_path / "jobs.jsonl"
    file.write_text('{"command": "true"}\n' * LINES)
    words = ("enqueue", "--file", str(file), *(() if chunk == LINES else ("--chunk", str(chunk))))
    moments = instants(unloaded, stocked, *words)
    before = count(stocked)
    codes = []
    for moment in moments:
        ran = Run(unloaded, stocked, *words).interrupt(moment)
        codes.append(ran.code)
        assert ran.code in (0, INTERRUPTED), ran
        assert ran.err == "", ran
        stored = count(stocked) - before
        before += stored
        assert stored in range(0, LINES + 1, chunk), ran
        assert ran.code == INTERRUPTED or stored == LINES
    assert INTERRUPTED in codes


def test_ctrl_c_while_standard_input_is_awaited_stores_nothing(stocked: Path, unloaded: Nursery) -> None:
    reads, writes = os.pipe()
    with open(reads, "rb"):
        run = Run(unloaded, stocked, "enqueue", "--file", "-", stdin=reads)
    with open(writes, "wb") as stdin:
        # More than the pipe holds: when all of it is written, some was read.
        stdin.write(b'{"command": "true"}\n' * 10_000)
        stdin.flush()
        ran = run.interrupt(0.0)
    assert ran.code == INTERRUPTED
    assert ran.out == ran.err == ""
    assert count(stocked) == 3


@pytest.mark.parametrize(
    "words", [("status", "--watch"), ("status", "--watch", "--json"), ("logs", "wait1", "--follow")]
)
def test_ctrl_c_ends_what_watches(stocked: Path, words: tuple[str, ...]) -> None:
    (stocked / "logs").mkdir()
    (stocked / "logs" / "wait1.log").write_text("so far\n")
    for delay in (0.0, 0.02, 0.15):
        process = start_queuectl(stocked, *words)
        assert process.stdout is not None
        assert process.stdout.readline()
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        ran = finished(process)
        assert ran.code == INTERRUPTED, ran
        assert ran.err == "", ran


def test_ctrl_c_on_the_live_screen_gives_the_terminal_back(stocked: Path) -> None:
    screen = terminal(stocked, "status", "--watch")
    try:
        screen.read_until("Ctrl-C")
        screen.type("\x03")
        ran = screen.finish()
    finally:
        screen.close()
    assert ran.code == INTERRUPTED, ran
    assert "Traceback" not in ran.text
    assert ran.out.rindex("\x1b[?1049l") > ran.out.rindex("\x1b[?1049h"), "the usual screen is back"
    assert ran.out.rindex("\x1b[?25h") > ran.out.rindex("\x1b[?25l"), "the cursor is back"


def test_ctrl_c_while_workers_are_awaited_leaves_the_request_standing(stocked: Path, queue: Queue) -> None:
    worker = WorkerRecord(
        id="worker1", pid=os.getpid(), host=socket.gethostname(), state="running", concurrency=1, types=()
    )
    store_of(queue).register_worker(worker, [])
    process = start_queuectl(stocked, "worker", "stop")
    wait_until(lambda: store_of(queue).get_stop_request("worker1") != StopRequest.NONE)
    process.send_signal(signal.SIGINT)
    ran = finished(process)
    assert ran.code == INTERRUPTED, ran
    assert ran.out == ran.err == ""


def test_ctrl_c_while_detached_workers_are_awaited_leaves_none_behind(stocked: Path, queue: Queue) -> None:
    process = start_queuectl(stocked, "worker", "start", "--detach", "--count", "2", start_new_session=True)
    wait_until(
        lambda: list((stocked / "logs" / "workers").glob("*.log")), message="the supervisor is started"
    )
    process.send_signal(signal.SIGINT)
    ran = finished(process)
    assert "Traceback" not in ran.err, ran
    if ran.code == 0:  # they were up already
        assert queuectl(stocked, "worker", "stop", "--force").code == 0
    else:
        assert ran.code == INTERRUPTED, ran
    wait_until(lambda: not _processes_of(stocked), timeout=30, message="no process is left")
    assert store_of(queue).list_workers() == []


def test_detached_workers_that_nobody_waits_for_stop(stocked: Path, queue: Queue) -> None:
    # As when a Ctrl-C comes in the moment between the start of their supervisor and its being known.
    process = start_queuectl(stocked, "worker", "start", "--detach", start_new_session=True)
    wait_until(
        lambda: list((stocked / "logs" / "workers").glob("*.log")), message="the supervisor is started"
    )
    process.kill()
    process.communicate()
    wait_until(lambda: not _processes_of(stocked), timeout=30, message="no process is left")
    assert store_of(queue).list_workers() == []


def _processes_of(home: Path) -> list[str]:
    """The pids of programs that run with this home."""
    mark = b"QUEUECTL_HOME=" + bytes(home) + b"\0"
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and mark in (folder / "environ").read_bytes():
                found.append(folder.name)
        except OSError:
            continue
    return found


PATIENT = "import holdfast.store.database as d; d.PATIENCE = 600.0; from holdfast.cli import main; main()"
"""A queuectl that waits for the lock for longer than a test may take."""


def has_open(pid: int, file: Path) -> bool:
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            if link.readlink() == file:
                return True
    return False


def test_ctrl_c_while_the_lock_is_awaited_ends_at_once(stocked: Path) -> None:
    holder = sqlite3.connect(stocked / "queue.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    try:
        with subprocess.Popen(
            [sys.executable, "-c", PATIENT, "enqueue", "--command", "true"],
            env=environment(stocked),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as waiting:
            wait_until(lambda: has_open(waiting.pid, stocked / "queue.db"))
            time.sleep(0.2)
            waiting.send_signal(signal.SIGINT)
            said = waiting.communicate(timeout=60)
    finally:
        holder.close()
    assert waiting.returncode == INTERRUPTED, said
    assert said == (b"", b"")
    assert count(stocked) == 3


def test_ctrl_c_during_a_backup_leaves_no_file(
    stocked: Path, queue: Queue, unloaded: Nursery, tmp_path: Path
) -> None:
    queue.enqueue_many("echo", ({"a": "x" * 10_000} for _ in range(1000)))
    target = tmp_path / "copies" / "copy.db"
    target.parent.mkdir()
    for moment in instants(unloaded, stocked, "backup", str(target)):
        target.unlink(missing_ok=True)
        ran = Run(unloaded, stocked, "backup", str(target)).interrupt(moment)
        assert ran.code in (0, INTERRUPTED), ran
        assert ran.err == "", ran
        left = [path.name for path in target.parent.iterdir()]
        assert left in ([], ["copy.db"]), left
        if left:
            connection = sqlite3.connect(target)
            assert connection.execute("SELECT count(*) FROM holdfast_jobs").fetchone() == (1003,)
            connection.close()
            for name in ("copy.db-wal", "copy.db-shm"):
                (target.parent / name).unlink(missing_ok=True)


STAGED = """
import sys
from holdfast.store.sqlite.fork import ForkGate

enter = ForkGate.enter
calls = []

def interrupted(gate):
    calls.append(gate)
    if len(calls) == 3:
        gate._condition.acquire()  # as when Ctrl-C comes just after it
        raise KeyboardInterrupt
    enter(gate)

ForkGate.enter = interrupted
sys.argv = ["queuectl", "list"]
from holdfast.cli import main
main()
"""


def test_ctrl_c_that_leaves_a_lock_behind_does_not_hang_the_command(stocked: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", STAGED],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(stocked),
    )
    try:
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, out, err) == (130, b"", b"")
