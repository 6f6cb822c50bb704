"""queuectl enqueue --file: many jobs, one JSON object a line, all or nothing, in constant memory."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast import Queue
from holdfast.cli import enqueue_file
from tests.support import both_engines
from tests.surfaces.support import QUEUECTL, Cli, environment, on_terminal, queuectl


def write_lines(path: Path, lines: Iterable[object]) -> str:
    """A file of these lines, objects as JSON; its name."""
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    path.write_text(text, encoding="utf-8")
    return str(path)


def commands(count: int) -> list[dict[str, str]]:
    return [{"id": f"job{n}", "command": f"echo {n}"} for n in range(1, count + 1)]


def stored(queue: Queue) -> list[str]:
    """The ids there are, oldest first."""
    return [job.id for job in queue.jobs(limit=1000)][::-1]


def test_file_prints_an_id_for_each_line_in_order(cli: Cli, queue: Queue, tmp_path: Path) -> None:
    ran = cli("enqueue", "--file", write_lines(tmp_path / "jobs.jsonl", commands(3)))
    assert (ran.code, ran.lines, ran.err) == (0, ["job1", "job2", "job3"], "")
    assert stored(queue) == ["job1", "job2", "job3"]


@both_engines
def test_lines_may_be_all_that_enqueue_takes(cli: Cli, queue: Queue, tmp_path: Path) -> None:
    lines = [
        {"command": "true", "lane": "media", "maxAttempts": 5, "env": {"A": "1"}},
        {"type": "send_email", "payload": {"to": "ü"}, "priority": 4, "delay": "1h"},
        {"type": "tick", "run_at": "2099-01-31T09:00:00Z", "key": "k", "key_for": "1d", "timeout": 5},
    ]
    assert cli("enqueue", "--file", write_lines(tmp_path / "jobs.jsonl", lines)).code == 0
    third, second, first = (queue.get(job.id) for job in queue.jobs())
    assert first is not None
    assert second is not None
    assert third is not None
    assert (first.type, first.max_attempts, first.payload["env"]) == ("shell:media", 5, {"A": "1"})
    assert (second.type, second.payload, second.priority) == ("send_email", {"to": "ü"}, 4)
    assert second.status == "scheduled"
    assert (third.key, third.key_for, third.timeout, third.status) == ("k", 86_400.0, 5.0, "scheduled")


def test_json_answer_holds_the_ids(cli: Cli, tmp_path: Path) -> None:
    ran = cli("enqueue", "--file", write_lines(tmp_path / "jobs.jsonl", commands(3)), "--json")
    assert (ran.code, ran.json) == (0, {"ids": ["job1", "job2", "job3"], "count": 3})


@pytest.mark.process
def test_dash_is_standard_input(home: Path, queue: Queue) -> None:
    text = "".join(json.dumps(line) + "\n" for line in commands(3))
    ran = queuectl(home, "enqueue", "--file", "-", input=text)
    assert (ran.code, ran.lines, ran.err) == (0, ["job1", "job2", "job3"], "")
    assert stored(queue) == ["job1", "job2", "job3"]


def test_blank_lines_are_passed_over(cli: Cli, queue: Queue, tmp_path: Path) -> None:
    path = tmp_path / "jobs.jsonl"
    path.write_bytes(b'\n{"id": "a", "command": "true"}\r\n   \t\n\n{"id": "b", "command": "true"}')
    ran = cli("enqueue", "--file", str(path))
    assert (ran.code, ran.lines) == (0, ["a", "b"])
    assert stored(queue) == ["a", "b"]


def test_blank_lines_count_in_the_number_of_a_bad_one(cli: Cli, tmp_path: Path) -> None:
    ran = cli("enqueue", "--file", write_lines(tmp_path / "jobs.jsonl", ["", "", *commands(1), "", "oops"]))
    assert ran.code == 2
    assert "line 5:" in ran.err


def test_byte_order_mark_is_passed_over(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "jobs.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"id": "a", "command": "true"}\n')
    ran = cli("enqueue", "--file", str(path))
    assert (ran.code, ran.lines) == (0, ["a"])


def test_empty_file_stores_nothing_and_is_no_error(cli: Cli, queue: Queue, tmp_path: Path) -> None:
    name = write_lines(tmp_path / "jobs.jsonl", [])
    assert (cli("enqueue", "--file", name).code, queue.jobs()) == (0, [])
    assert cli("enqueue", "--file", name, "--json").json == {"ids": [], "count": 0}


@pytest.mark.parametrize(
    "bad",
    [
        "oops",
        "[1]",
        "5",
        '{"command": 5}',
        '{"command": "true", "prio": 1}',
        '{"command": "true", "priority": "high"}',
        '{"type": "no such/type"}',
        '{"type": "shell", "payload": {}}',
        '{"command": "true", "env": {"A": 1}}',
        '{"command": "true", "command": "false"}',
        '{"command": "true"} {"command": "true"}',
    ],
)
def test_bad_line_is_named_by_its_number_and_nothing_is_stored(
    cli: Cli, queue: Queue, tmp_path: Path, bad: str
) -> None:
    name = write_lines(tmp_path / "jobs.jsonl", [*commands(2), bad, {"id": "job4", "command": "true"}])
    ran = cli("enqueue", "--file", name)
    assert (ran.code, ran.out, len(ran.errors)) == (2, "", 1), ran
    assert "line 3:" in ran.err
    assert "nothing was stored" in ran.err
    assert queue.jobs() == []


def test_bad_line_stores_nothing_with_chunks_either(cli: Cli, queue: Queue, tmp_path: Path) -> None:
    name = write_lines(tmp_path / "jobs.jsonl", [*commands(4), "oops"])
    ran = cli("enqueue", "--file", name, "--chunk", "2")
    assert (ran.code, ran.out, queue.jobs()) == (2, "", [])
    assert "line 5:" in ran.err


def test_line_that_is_not_utf_8_is_named(cli: Cli, queue: Queue, tmp_path: Path) -> None:
    path = tmp_path / "jobs.jsonl"
    path.write_bytes(b'{"command": "true"}\n{"command": "caf\xe9"}\n')
    ran = cli("enqueue", "--file", str(path))
    assert (ran.code, len(ran.errors), queue.jobs()) == (2, 1, [])
    assert "line 2:" in ran.err


@both_engines
def test_id_twice_in_a_file_is_refused_and_nothing_is_stored(cli: Cli, queue: Queue, tmp_path: Path) -> None:
    name = write_lines(tmp_path / "jobs.jsonl", [*commands(3), {"id": "job2", "command": "false"}])
    ran = cli("enqueue", "--file", name)
    assert (ran.code, ran.out, len(ran.errors)) == (1, "", 1), ran
    assert "line 4:" in ran.err
    assert "job2" in ran.err
    assert queue.jobs() == []


def test_id_that_exists_is_refused_and_nothing_is_stored(cli: Cli, queue: Queue, tmp_path: Path) -> None:
    cli("enqueue", "--command", "echo first", "--id", "job2")
    ran = cli("enqueue", "--file", write_lines(tmp_path / "jobs.jsonl", commands(3)))
    assert (ran.code, ran.out, len(ran.errors)) == (1, "", 1), ran
    assert "line 2:" in ran.err
    assert stored(queue) == ["job2"]


def test_key_held_by_another_payload_is_refused_and_nothing_is_stored(
    cli: Cli, queue: Queue, tmp_path: Path
) -> None:
    lines = [{"command": "true", "key": "k"}, {"command": "false", "key": "k"}]
    ran = cli("enqueue", "--file", write_lines(tmp_path / "jobs.jsonl", lines))
    assert (ran.code, ran.out, len(ran.errors), queue.jobs()) == (1, "", 1, [])
    assert "line 2:" in ran.err


def test_same_key_and_payload_in_a_file_is_one_job(cli: Cli, queue: Queue, tmp_path: Path) -> None:
    lines = [{"command": "true", "key": "k"}] * 3
    ran = cli("enqueue", "--file", write_lines(tmp_path / "jobs.jsonl", lines))
    assert ran.code == 0
    assert ran.lines == [queue.jobs()[0].id] * 3
    assert len(queue.jobs()) == 1


def test_more_than_max_depth_is_refused_and_nothing_is_stored(cli: Cli, queue: Queue, tmp_path: Path) -> None:
    queue.set_config("max_depth", 2, type="shell")
    ran = cli("enqueue", "--file", write_lines(tmp_path / "jobs.jsonl", commands(3)))
    assert (ran.code, ran.out, len(ran.errors), queue.jobs()) == (1, "", 1, [])


@pytest.mark.parametrize("chunk", ["1", "2", "3", "7", "100"])
def test_chunks_store_every_line_once_and_in_order(
    cli: Cli, queue: Queue, tmp_path: Path, chunk: str
) -> None:
    ran = cli("enqueue", "--file", write_lines(tmp_path / "jobs.jsonl", commands(7)), "--chunk", chunk)
    assert (ran.code, ran.lines) == (0, [f"job{n}" for n in range(1, 8)])
    assert stored(queue) == ran.lines


@both_engines
def test_refused_line_leaves_the_chunks_before_it_and_says_so(cli: Cli, queue: Queue, tmp_path: Path) -> None:
    name = write_lines(tmp_path / "jobs.jsonl", [*commands(5), {"id": "job1", "command": "false"}])
    ran = cli("enqueue", "--file", name, "--chunk", "2")
    assert (ran.code, ran.lines, len(ran.errors)) == (1, ["job1", "job2", "job3", "job4"], 1), ran
    assert "line 6:" in ran.err
    assert "4 jobs" in ran.err
    assert stored(queue) == ran.lines


@pytest.mark.parametrize("chunk", ["0", "-1", "100001", "many"])
def test_chunk_must_be_a_number_of_lines(cli: Cli, queue: Queue, tmp_path: Path, chunk: str) -> None:
    ran = cli("enqueue", "--file", write_lines(tmp_path / "jobs.jsonl", commands(1)), "--chunk", chunk)
    assert (ran.code, len(ran.errors), queue.jobs()) == (2, 1, [])


def test_file_and_other_flags_exclude_each_other(cli: Cli, queue: Queue, tmp_path: Path) -> None:
    name = write_lines(tmp_path / "jobs.jsonl", commands(1))
    for other in (["--priority", "1"], ["--command", "true"], ["--type", "x"], ['{"command": "true"}']):
        ran = cli("enqueue", "--file", name, *other)
        assert (ran.code, ran.out, len(ran.errors)) == (2, "", 1), ran
    assert queue.jobs() == []


def test_missing_file_is_one_line_with_its_name(cli: Cli, tmp_path: Path) -> None:
    ran = cli("enqueue", "--file", str(tmp_path / "nowhere.jsonl"))
    assert (ran.code, ran.out, len(ran.errors)) == (1, "", 1)
    assert "nowhere.jsonl" in ran.err


def test_more_than_100_000_lines_need_chunks(
    cli: Cli, queue: Queue, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert enqueue_file.MOST_AT_ONCE == 100_000
    monkeypatch.setattr(enqueue_file, "MOST_AT_ONCE", 5)
    name = write_lines(tmp_path / "jobs.jsonl", commands(6))
    for source in (name, "-"):
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(Path(name).read_bytes())))
        ran = cli("enqueue", "--file", source)
        assert (ran.code, ran.out, len(ran.errors)) == (2, "", 1)
        assert "--chunk" in ran.err
        assert queue.jobs() == []
    assert len(cli("enqueue", "--file", name, "--chunk", "5").lines) == 6
    assert len(queue.jobs()) == 6


def test_as_many_lines_as_one_commit_may_hold_need_no_chunks(
    cli: Cli, queue: Queue, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(enqueue_file, "MOST_AT_ONCE", 5)
    ran = cli("enqueue", "--file", write_lines(tmp_path / "jobs.jsonl", commands(5)))
    assert (ran.code, stored(queue)) == (0, ran.lines)


# A process counts as its own peak what its parent was when it was started: hence one small parent between.
_MEASURE = """\
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True)
sys.stderr.write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
"""


def peak_memory(home: Path, name: str, lines: int) -> float:
    """What `enqueue --file` needed at most, in MiB."""
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, *QUEUECTL, "enqueue", "--file", name],
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert len(done.stdout.splitlines()) == lines
    return int(done.stderr) / (1024 if sys.platform == "linux" else 1024 * 1024)


@pytest.mark.process
def test_memory_does_not_grow_with_the_file(home: Path, tmp_path: Path) -> None:
    def lines(count: int) -> list[dict[str, str]]:
        return [{"command": f"echo {n} {'x' * 1000}"} for n in range(count)]

    few = peak_memory(home, write_lines(tmp_path / "few.jsonl", lines(2_000)), 2_000)
    many = peak_memory(home, write_lines(tmp_path / "many.jsonl", lines(20_000)), 20_000)
    # The database's page cache fills, to some 28 MiB; 18,000 such jobs would be 20 MiB or more beside it.
    assert many - few < 32, f"{few:.1f} MiB for 2,000 lines, {many:.1f} MiB for 20,000"


@pytest.mark.process
def test_progress_bar_is_shown_on_a_terminal_only(home: Path, tmp_path: Path) -> None:
    name = write_lines(tmp_path / "jobs.jsonl", [{"command": "true"}] * 1000)
    piped = queuectl(home, "enqueue", "--file", name)
    assert (piped.code, piped.err, len(piped.lines)) == (0, "", 1000)
    assert "\x1b" not in piped.out
    shown = on_terminal(home, "enqueue", "--file", name)
    assert shown.code == 0
    assert "storing" in shown.text
    assert "1000/1000" in shown.text
