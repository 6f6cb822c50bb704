"""Extractions by Claude Code through a real worker and a stand-in executable: answers, failures, endings.

What an output means is tested without the executable: `play` hands its bytes to the attempt.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import Job, Queue
from holdfast.errors import InvalidPayload, KeyTaken
from holdfast.events import JobReleased
from holdfast.jobs import CLAUDE_EXTRACTION, claude, claude_answer, command, install
from holdfast.system import process_group
from tests.jobs.claude_stand_in import envelope
from tests.support import Recorder, wait_until
from tests.worker.support import PATIENCE, get, is_alive, path_of, sql, time_out

pytestmark = pytest.mark.process

StartWorker = Callable[..., Any]

STAND_IN = Path(__file__).with_name("claude_stand_in.py")
SESSION = "3536e76d-21cd-4b08-82c5-99fab516c2c3"
HANG: dict[str, Any] = {"hang": True}
Step = dict[str, Any]
Play = Callable[..., Job]


class Claude:
    """What the stand-in is told to do, and what it was given."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.does({"answer": {}})

    def does(self, *steps: dict[str, Any]) -> None:
        """Run after run; the last goes on."""
        (self.folder / "script.json").write_text(json.dumps(steps), encoding="utf-8")

    def runs(self) -> int:
        return len(list(self.folder.glob("run-*.json")))

    def run(self, number: int = 1) -> dict[str, Any]:
        """What a run was given, waiting for it."""
        path = self.folder / f"run-{number}.json"
        wait_until(path.exists, timeout=PATIENCE, message="the stand-in was not started")
        given: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return given

    def wait_hanging(self) -> None:
        """Wait until a run has done all that comes before it hangs."""
        wait_until((self.folder / "hangs").exists, timeout=PATIENCE, message="no run hangs")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder of the test's own, and one for files."""
    for name in [name for name in os.environ if name.startswith("QUEUECTL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("QUEUECTL_HOME", str(tmp_path / "home"))
    (tmp_path / "files").mkdir()
    monkeypatch.setenv("QUEUECTL_FILE_ROOTS", str(tmp_path / "files"))
    monkeypatch.setattr(process_group, "KILL_AFTER", 0.3)
    return tmp_path / "home"


@pytest.fixture(autouse=True)
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Claude:
    """Takes the place of Claude Code."""
    monkeypatch.setenv("QUEUECTL_CLAUDE", shlex.join([sys.executable, "-I", "-S", str(STAND_IN)]))
    monkeypatch.setenv("STAND_IN", str(tmp_path / "stand-in"))
    return Claude(tmp_path / "stand-in")


@pytest.fixture(autouse=True)
def nothing_of_claude_left(home: Path, stand_in: Claude) -> Iterator[None]:
    """Every process that a test started is gone after it, and so is every prompt."""
    yield

    def left() -> list[int]:
        return [pid for pid in process_group.marked(f"STAND_IN={stand_in.folder}") if is_alive(pid)]

    try:
        wait_until(lambda: not left(), timeout=30, message="processes left behind")
    finally:
        for pid in left():
            os.kill(pid, signal.SIGKILL)
    assert not (home / "prompts").exists() or not list((home / "prompts").iterdir())


@pytest.fixture
def queue(queue: Queue) -> Queue:
    install(queue)
    queue.set_config("max_attempts", 1)
    queue.set_config("heartbeat_interval", 0.1)
    return queue


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Where the answer goes."""
    return tmp_path / "files" / "answer.md"


@pytest.fixture
def play(queue: Queue, target: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Runs the first of two attempts of an extraction, of which no process but a step gives the output."""
    numbers = itertools.count()
    queue.set_config("backoff_factor", 3600)

    def run(step: Step, path: Path = target) -> Job:
        def print_and_end(*_: object, write: Callable[[bytes], None], **__: object) -> command.Ran:
            write(output_of(step))
            return command.Ran(exit_code_of(step), was_stopped=False)

        monkeypatch.setattr(command, "run_in_group", print_and_end)
        payload = {"prompt": "What is it?", "targetPath": str(path), "requirementId": f"REQ-{next(numbers)}"}
        job = queue.enqueue(CLAUDE_EXTRACTION, payload, max_attempts=2)
        queue.drain(limit=1)
        job = get(queue, job.id)
        assert job.attempts == 1
        return job

    return run


def output_of(step: Step) -> bytes:
    """What the stand-in prints in a step, on stdout and stderr."""
    answer = json.dumps(envelope(**step["answer"])) + "\n" if "answer" in step else ""
    parts = (step.get("stderr", ""), step.get("before", ""), step.get("raw", answer), step.get("after", ""))
    return "".join(parts).encode("utf-8", "surrogateescape")


def exit_code_of(step: Step) -> int:
    code: int = -step["signal"] if "signal" in step else step.get("exit", 0)
    return code


def enqueue(queue: Queue, target: Path, prompt: str = "What is it?", **options: Any) -> Job:
    payload = {"prompt": prompt, "targetPath": str(target), "requirementId": "REQ-7"}
    return queue.enqueue(CLAUDE_EXTRACTION, payload, **options)


def extract(queue: Queue, start_worker: StartWorker, target: Path, prompt: str = "What is it?") -> Job:
    """Run one extraction to the end of its job."""
    start_worker()
    return queue.wait(enqueue(queue, target, prompt).id, timeout=PATIENCE)


def after_first_attempt(queue: Queue, start_worker: StartWorker, target: Path) -> Job:
    """The job once its first attempt has failed and two are left."""
    queue.set_config("max_attempts", 3)
    start_worker()
    job = enqueue(queue, target)
    wait_until(lambda: get(queue, job.id).errors, timeout=PATIENCE, message="the attempt did not fail")
    return get(queue, job.id)


def pause_of(job: Job) -> float:
    """Seconds from the end of the attempt to the next one."""
    assert job.next_retry_at is not None, job
    return (job.next_retry_at - job.updated_at).total_seconds()


def detail_of(job: Job) -> dict[str, Any]:
    detail = job.errors[-1].detail
    assert detail is not None
    return detail


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# An answer.


def test_answer_becomes_the_file_and_the_result_tells_of_it(
    queue: Queue, start_worker: StartWorker, stand_in: Claude, target: Path
) -> None:
    stand_in.does({"answer": {"result": "# Grüße\n\ntwo lines\n", "num_turns": 2}})
    job = extract(queue, start_worker, target)
    text = "# Grüße\n\ntwo lines\n"
    assert target.read_text(encoding="utf-8") == text
    assert {**job.result, "changed": True} == {
        "path": str(target),
        "sha256": sha256(text),
        "bytes": len(text.encode()),
        "changed": True,
        "promptHash": sha256("What is it?"),
        "sessionId": SESSION,
        "costUsd": 0.0125,
        "turns": 2,
    }


def test_answer_without_a_line_end_gets_one(play: Play, target: Path) -> None:
    play({"answer": {"result": "  an answer"}})
    assert target.read_bytes() == b"  an answer\n"


def test_what_was_there_before_is_replaced(queue: Queue, start_worker: StartWorker, target: Path) -> None:
    target.write_text("an older and longer answer, of which nothing stays")
    assert extract(queue, start_worker, target).status == "completed"
    assert target.read_text() == "an answer\n"


def test_older_version_that_tells_neither_cost_nor_session_will_do(play: Play) -> None:
    job = play({"answer": {"session_id": None, "total_cost_usd": None, "num_turns": None}})
    assert job.status == "completed"
    assert job.result["promptHash"] == sha256("What is it?")
    assert not job.result.keys() & {"sessionId", "costUsd", "turns"}


WRAPPINGS: dict[str, dict[str, Any]] = {
    "warnings on stdout": {"before": '(node:7) Warning: {old} things\n{"type": 1}\n'},
    "a warning without a line end": {"before": "warning: "},
    "warnings on stderr": {"stderr": 'warn: {"type":"result"\n' * 3},
    "bytes that are no text": {"before": "\udcff\udc80\x00\n"},
    "words that follow": {"after": "\nbye {\n"},
    "a message of a limit that is near": {"stderr": "You are close to your usage limit\n"},
}


def test_answer_is_found_among_other_output(play: Play, target: Path) -> None:
    for what, wrapping in WRAPPINGS.items():
        result = f'{what}: it says {{"type":"result","is_error":true}} and ends'
        assert play({"answer": {"result": result}, **wrapping}).status == "completed", what
        assert target.read_text() == result + "\n"


def test_answer_is_found_at_the_end_of_a_list_of_messages(play: Play, target: Path) -> None:
    """So it is printed where the settings of Claude Code say verbose."""
    raw = (
        '[{"type":"system","subtype":"init"},'
        '{"type":"assistant","message":{"content":[{"type":"tool_use","input":'
        '{"type":"result","is_error":true,"result":"a trap"}}]}},'
        '{"type":"result","subtype":"success","is_error":false,"result":"the answer"}]\n'
    )
    play({"raw": raw})
    assert target.read_text() == "the answer\n"


# What Claude Code is given.


def test_prompt_comes_on_stdin_to_its_last_byte(
    queue: Queue, start_worker: StartWorker, stand_in: Claude, target: Path
) -> None:
    prompt = " \n-p --model x\n$(id) `id` 'quotes' \"and\" \\ ü 🙂\r\n" + "long " * 50_000 + "end\n "
    job = extract(queue, start_worker, target, prompt)
    assert stand_in.run()["prompt"] == prompt
    assert job.result["promptHash"] == sha256(prompt)


def test_nothing_may_be_read_or_run_unless_it_is_allowed(
    queue: Queue, start_worker: StartWorker, stand_in: Claude, target: Path, home: Path
) -> None:
    extract(queue, start_worker, target)
    given = stand_in.run()
    assert given["flags"] == {
        "-p": True,
        "--output-format": "json",
        "--permission-mode": "dontAsk",
        "--tools": "",
        "--strict-mcp-config": True,
    }
    assert (given["folder"], given["files"]) == (str(home / "claude"), [])
    assert home.stat().st_mode & 0o777 == 0o700
    assert given["leads"], "it leads no session and group of its own"


def test_environment_of_the_worker_says_more(
    queue: Queue,
    start_worker: StartWorker,
    stand_in: Claude,
    target: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = f"'{sys.executable}' -I -S '{STAND_IN}' --max-turns 3"
    monkeypatch.setenv("QUEUECTL_CLAUDE", words)
    monkeypatch.setenv("QUEUECTL_CLAUDE_PERMISSION_MODE", "plan")
    monkeypatch.setenv("QUEUECTL_CLAUDE_MODEL", "sonnet")
    monkeypatch.setenv("QUEUECTL_CLAUDE_BUDGET_USD", "0.50")
    monkeypatch.setenv("QUEUECTL_CLAUDE_TOOLS", "Read,Grep")
    monkeypatch.setenv("QUEUECTL_CLAUDE_FOLDER", str(tmp_path / "files"))
    extract(queue, start_worker, target)
    given = stand_in.run()
    assert given["flags"] == {
        "--max-turns": "3",
        "-p": True,
        "--output-format": "json",
        "--permission-mode": "plan",
        "--tools": "Read,Grep",
        "--strict-mcp-config": True,
        "--model": "sonnet",
        "--max-budget-usd": "0.50",
    }
    assert given["folder"] == str(tmp_path / "files")


def test_executable_is_looked_for_on_the_path(
    queue: Queue,
    start_worker: StartWorker,
    stand_in: Claude,
    target: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "a bin"
    folder.mkdir()
    (folder / "claude").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -I -S {STAND_IN} "$@"\n')
    (folder / "claude").chmod(0o755)
    monkeypatch.delenv("QUEUECTL_CLAUDE")
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    assert extract(queue, start_worker, target).status == "completed"
    assert stand_in.runs() == 1


def test_nothing_of_the_queues_own_is_in_its_environment(
    queue: Queue,
    start_worker: StartWorker,
    stand_in: Claude,
    target: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("QUEUECTL_TOKEN", "xyzzy-of-the-server")
    monkeypatch.setenv("QUEUECTL_READ_TOKEN", "another-token")
    monkeypatch.setenv("QUEUECTL_DATABASE_URL", "sqlite:///elsewhere.db")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-needed")
    job = extract(queue, start_worker, target)
    environment = stand_in.run()["environment"]
    assert environment["ANTHROPIC_API_KEY"] == "sk-ant-needed"
    own = {name: value for name, value in environment.items() if name.startswith("QUEUECTL_")}
    assert own.keys() == set(process_group.MARKS)
    assert (own["QUEUECTL_JOB_ID"], own["QUEUECTL_ATTEMPT"]) == (job.id, "1")


# The frozen prompt.


def test_hash_and_whole_path_are_stored_with_the_prompt(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    job = enqueue(queue, Path("files/../files/a.md"))
    assert job.payload == {
        "prompt": "What is it?",
        "targetPath": str(tmp_path / "files" / "a.md"),
        "requirementId": "REQ-7",
        "promptHash": sha256("What is it?"),
    }
    assert job.key == f"REQ-7:{sha256('What is it?')}"


def test_prompt_is_frozen_by_a_process_that_runs_no_extractions(
    queue: Queue, other_queue: Queue, start_worker: StartWorker, target: Path
) -> None:
    job = enqueue(other_queue, target)
    assert (job.payload["promptHash"], enqueue(queue, target).id) == (sha256("What is it?"), job.id)
    start_worker()
    assert queue.wait(job.id, timeout=PATIENCE).status == "completed"


def test_right_hash_is_taken_and_null_is_none(queue: Queue, target: Path) -> None:
    for number, given in enumerate((sha256("What is it?"), None)):
        payload = {
            "prompt": "What is it?",
            "targetPath": str(target),
            "requirementId": f"REQ-{number}",
            "promptHash": given,
        }
        assert queue.enqueue(CLAUDE_EXTRACTION, payload).payload["promptHash"] == sha256("What is it?")


def test_hash_of_another_prompt_is_refused(queue: Queue, target: Path) -> None:
    payload = {"prompt": "What is it?", "targetPath": str(target), "requirementId": "REQ-7"}
    for digest in ("", "0" * 64, sha256("What is it? "), sha256("What is it?").upper()):
        with pytest.raises(InvalidPayload) as caught:
            queue.enqueue(CLAUDE_EXTRACTION, {**payload, "promptHash": digest})
        assert caught.value.where == "payload.promptHash"
    assert queue.count() == 0


def test_prompt_that_changed_while_it_was_stored_is_not_run(
    queue: Queue, start_worker: StartWorker, stand_in: Claude, target: Path
) -> None:
    queue.set_config("max_attempts", 3)
    job = enqueue(queue, target)
    sql(queue, "UPDATE holdfast_jobs SET payload = replace(payload, 'What', 'Who')")
    start_worker()
    done = queue.wait(job.id, timeout=PATIENCE)
    assert (done.status, done.attempts, stand_in.runs()) == ("failed", 1, 0)
    assert "the prompt has changed since it was enqueued" in (done.error or "")
    assert not target.exists()


def test_every_attempt_runs_the_same_prompt(
    queue: Queue, start_worker: StartWorker, stand_in: Claude, target: Path
) -> None:
    queue.set_config("max_attempts", 3)
    stand_in.does({"exit": 1}, {"raw": "{"}, {"answer": {}})
    job = extract(queue, start_worker, target)
    assert (job.status, job.attempts) == ("completed", 3)
    assert {stand_in.run(number)["prompt"] for number in (1, 2, 3)} == {"What is it?"}


def test_same_prompt_for_the_same_requirement_is_the_same_job_while_unfinished(
    queue: Queue, start_worker: StartWorker, stand_in: Claude, target: Path
) -> None:
    first = enqueue(queue, target)
    assert enqueue(queue, target).id == first.id
    stand_in.does(HANG)
    worker = start_worker()
    stand_in.run()
    assert enqueue(queue, target).id == first.id, "it runs, and counts"
    queue.cancel(first.id)
    assert queue.wait(first.id, timeout=PATIENCE).status == "cancelled"
    stand_in.does({"answer": {}})
    second = enqueue(queue, target)
    assert second.id != first.id
    assert queue.wait(second.id, timeout=PATIENCE).status == "completed"
    assert enqueue(queue, target).id not in (first.id, second.id)
    assert worker.is_running


def test_other_prompt_or_requirement_is_another_job(queue: Queue, target: Path) -> None:
    payload = {"prompt": "What is it?", "targetPath": str(target), "requirementId": "REQ-8"}
    jobs = [enqueue(queue, target), enqueue(queue, target, "Who is it?")]
    jobs.append(queue.enqueue(CLAUDE_EXTRACTION, payload))
    assert len({job.id for job in jobs}) == 3


def test_same_prompt_with_another_target_is_refused_while_unfinished(queue: Queue, target: Path) -> None:
    enqueue(queue, target)
    with pytest.raises(KeyTaken):
        enqueue(queue, target.with_name("elsewhere.md"))


def test_key_that_the_caller_chose_holds(queue: Queue, target: Path) -> None:
    assert enqueue(queue, target, key="mine").key == "mine"


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"prompt": None}, "payload.prompt"),
    ({"prompt": ""}, "payload.prompt"),
    ({"prompt": " \n"}, "payload.prompt"),
    ({"prompt": ["a"]}, "payload.prompt"),
    ({"prompt": "a\x00b"}, "payload.prompt"),
    ({"targetPath": ""}, "payload.targetPath"),
    ({"targetPath": "folder/"}, "payload.targetPath"),
    ({"targetPath": "~/file"}, "payload.targetPath"),
    ({"targetPath": 7}, "payload.targetPath"),
    ({"requirementId": ""}, "payload.requirementId"),
    ({"requirementId": " "}, "payload.requirementId"),
    ({"requirementId": 7}, "payload.requirementId"),
    ({"requirementId": "x" * 441}, "payload.requirementId"),
    ({"requirementId": "a\nb"}, "payload.requirementId"),
    ({"promptHash": 7}, "payload.promptHash"),
    ({"prompt_hash": "x"}, "payload"),
    ({"model": "opus"}, "payload"),
]


def test_wrong_payload_is_refused_where_it_is_enqueued(queue: Queue, target: Path) -> None:
    payload = {"prompt": "What is it?", "targetPath": str(target), "requirementId": "REQ-7"}
    for change, where in WRONG:
        with pytest.raises(InvalidPayload) as caught:
            queue.enqueue(CLAUDE_EXTRACTION, {**payload, **change})
        assert caught.value.where == where, change
    for missing in payload:
        with pytest.raises(InvalidPayload, match=missing):
            queue.enqueue(CLAUDE_EXTRACTION, {name: payload[name] for name in payload if name != missing})
    assert queue.count() == 0


# Failed runs: tried again.

FAILURES: dict[str, tuple[dict[str, Any], str]] = {
    "exit 1 that calls itself a success": ({"answer": {}, "exit": 1}, "exit code 1"),
    "exit 1 with an answer that speaks of errors": (
        {"answer": {"result": "Invalid API key: rate limit, prompt is too long"}, "exit": 1},
        "exit code 1",
    ),
    "exit 0 with is_error": (
        {"answer": {"is_error": True, "result": "API Error: 500 Internal server error"}},
        "exit code 0, is_error): API Error: 500 Internal server error",
    ),
    "exit 1 with is_error": (
        {"answer": {"is_error": True, "result": "Request timed out"}, "exit": 1},
        "exit code 1, is_error): Request timed out",
    ),
    "no more turns": (
        {"answer": {"subtype": "error_max_turns", "is_error": False, "result": None}},
        "exit code 0, error_max_turns)",
    ),
    "an error on the way": (
        {
            "answer": {
                "subtype": "error_during_execution",
                "is_error": True,
                "result": None,
                "errors": ["it broke", "twice"],
            },
            "exit": 1,
        },
        "exit code 1, error_during_execution): it broke; twice",
    ),
    "nothing printed": ({}, "exit code 0, no result in its output)"),
    "nothing but stderr": (
        {"stderr": "first\nlast words\n", "exit": 3},
        "exit code 3, no result in its output): last words",
    ),
    "no JSON": ({"raw": "Here is your answer\n"}, "no result in its output): Here is your answer"),
    "JSON that is no result": ({"raw": '{"answer": 42}\n'}, "no result in its output)"),
    "a result that was cut": (
        {"raw": '{"type":"result","subtype":"success","is_error":false,"result":"Not logged in, it'},
        "no result in its output)",
    ),
    "a result without is_error": ({"raw": '{"type":"result","result":"x"}'}, "no result in its output)"),
    "a result of another kind": (
        {"raw": '{"type":"result","is_error":false,"result":{"a":1}}'},
        "no result in its output)",
    ),
    "nesting without end": (
        {"raw": '{"type":"result","is_error":false,"x":' + "[" * 200_000},
        "no result in its output)",
    ),
    "a signal": ({"signal": signal.SIGKILL}, "killed by signal 9, no result in its output)"),
    "an answer before a signal": ({"answer": {}, "signal": signal.SIGSEGV}, "killed by signal 11"),
    "an empty answer": ({"answer": {"result": ""}}, "the answer is empty"),
    "a blank answer": ({"answer": {"result": " \n\t"}}, "the answer is empty"),
    "no answer": ({"answer": {"result": None}}, "the answer is empty"),
    "an answer that is not UTF-8": (
        {"raw": '{"type":"result","subtype":"success","is_error":false,"result":"caf\udce9"}'},
        "the answer is not valid UTF-8",
    ),
    "an answer with half a character": ({"answer": {"result": "\ud83d"}}, "the answer is not valid UTF-8"),
}


def test_failed_run_is_told_and_tried_again(play: Play, target: Path) -> None:
    for what, (step, problem) in FAILURES.items():
        job = play(step)
        assert job.status == "scheduled", what
        failure = job.errors[0]
        assert failure.error.startswith("ExtractionFailed: "), what
        assert problem in failure.error
        assert failure.traceback is None
        assert failure.detail is not None
        assert failure.detail["exitCode"] == exit_code_of(step)
    assert not target.exists()


def test_failed_attempts_leave_the_file_as_it_was(
    queue: Queue, start_worker: StartWorker, stand_in: Claude, target: Path
) -> None:
    target.write_text("from before")
    stand_in.does({"answer": {"result": "half an answer"}, "exit": 1})
    job = extract(queue, start_worker, target)
    assert (job.status, job.attempts) == ("failed", 1)
    assert target.read_text() == "from before"
    assert os.listdir(target.parent) == [target.name]


def test_history_says_how_a_run_ended(
    queue: Queue, start_worker: StartWorker, stand_in: Claude, target: Path
) -> None:
    stand_in.does(
        {
            "stderr": "a warning\x00\udcff\n",
            "answer": {"subtype": "error_max_turns", "is_error": True, "result": None, "num_turns": 9},
            "exit": 1,
        }
    )
    detail = detail_of(extract(queue, start_worker, target))
    tail = detail.pop("tail")
    assert detail == {
        "exitCode": 1,
        "subtype": "error_max_turns",
        "sessionId": SESSION,
        "costUsd": 0.0125,
        "turns": 9,
    }
    assert tail.startswith("a warning␀?\n{")
    assert tail.endswith("}\n")


def test_control_characters_of_a_message_are_escaped(play: Play) -> None:
    job = play({"answer": {"is_error": True, "result": "red \x1b[31malert\nsecond line"}})
    assert (job.error or "").endswith(r"): red \x1b[31malert")


# JSON targets.


@pytest.mark.parametrize(
    ("answer", "written"),
    [
        ('{"a": [1, 2]}', '{"a": [1, 2]}\n'),
        ('\n  {"a":\n 1}\n\n', '{"a":\n 1}\n'),
        ('```json\n{"a": 1}\n```', '{"a": 1}\n'),
        ("```\n[1,\n2]\n\n```\n", "[1,\n2]\n"),
        ('```JSON\r\n{"a": "```"}\r\n```', '{"a": "```"}\n'),
        ("null", "null\n"),
    ],
)
def test_json_target_takes_json_without_its_fence(
    play: Play, target: Path, answer: str, written: str
) -> None:
    path = target.with_suffix(".JSON")
    job = play({"answer": {"result": answer}}, path)
    assert job.status == "completed", job.error
    assert path.read_bytes() == written.encode()


@pytest.mark.parametrize(
    "answer",
    [
        "Here it is: {}",
        'Here it is:\n```json\n{"a": 1}\n```',
        "{'a': 1}",
        '{"a": 1',
        '{"a": NaN}',
        "```json\n```",
        "```json\nno\n```",
        "[" * 100_000,
        '{"a": 1} {"b": 2}',
    ],
    ids=lambda answer: answer[:40],
)
def test_json_target_takes_nothing_else_and_the_reason_is_kept(play: Play, target: Path, answer: str) -> None:
    path = target.with_suffix(".json")
    job = play({"answer": {"result": answer}}, path)
    assert job.status == "scheduled"
    detail = detail_of(job)
    assert detail["problem"].startswith(("the answer is not valid JSON: ", "the answer is empty"))
    assert job.errors[0].error == f"ExtractionFailed: {detail['problem']}"
    assert detail["tail"]
    assert not path.exists()


def test_other_targets_keep_their_fences(play: Play, target: Path) -> None:
    play({"answer": {"result": "```json\n{\n```"}})
    assert target.read_text() == "```json\n{\n```\n"


# Limits: tried again later.

LIMITS: dict[str, dict[str, Any]] = {
    "status 429": {"answer": {"is_error": True, "api_error_status": 429, "result": "Try later"}, "exit": 1},
    "status 529": {"answer": {"is_error": True, "api_error_status": 529, "result": ""}, "exit": 1},
    "429 in the text": {
        "answer": {
            "is_error": True,
            "result": 'API Error: 429 {"type":"error","error":{"type":"rate_limit_error","message":"x"}}',
        }
    },
    "a rejected request": {"answer": {"is_error": True, "result": "API Error: Request rejected (429)"}},
    "an overloaded server": {
        "answer": {"is_error": True, "result": "API Error: Repeated 529 Overloaded errors"}
    },
    "a session limit": {"answer": {"is_error": True, "result": "You've hit your session limit"}, "exit": 1},
    "a limit of a model": {
        "answer": {"is_error": True, "result": "You've reached your Opus 5 limit."},
        "exit": 1,
    },
    "an hourly limit": {"answer": {"is_error": True, "result": "5-hour limit reached"}, "exit": 1},
    "a limit on stderr": {"stderr": "Error: 429 rate_limit_error\n", "exit": 1},
    "a limit that has passed": {
        "answer": {"is_error": True, "result": "Claude AI usage limit reached|1750708800"}
    },
}


def test_limit_is_waited_for(play: Play) -> None:
    for what, step in LIMITS.items():
        job = play(step)
        assert job.status == "scheduled", what
        assert job.errors[-1].error.startswith("Retry: Claude Code failed (")
        assert pause_of(job) == pytest.approx(claude_answer.LIMIT_PAUSE, abs=1), what


@pytest.mark.parametrize(
    ("is_error", "unit"), [(True, 1), (True, 1000), (False, 1)], ids=["seconds", "milliseconds", "no error"]
)
def test_limit_that_tells_its_end_is_waited_for_until_then(
    queue: Queue, start_worker: StartWorker, stand_in: Claude, target: Path, is_error: bool, unit: int
) -> None:
    at = int(time.time()) + 4321
    stand_in.does({"answer": {"is_error": is_error, "result": f"Claude AI usage limit reached|{at * unit}"}})
    job = after_first_attempt(queue, start_worker, target)
    assert job.next_retry_at is not None
    assert job.next_retry_at.timestamp() == pytest.approx(at, abs=2)
    assert not target.exists()


def test_limit_that_tells_seconds_is_waited_for_as_long(play: Play) -> None:
    job = play({"answer": {"is_error": True, "api_error_status": 429, "result": "429, retry-after: 17"}})
    assert pause_of(job) == pytest.approx(17, abs=1)


NOON = datetime(2026, 9, 11, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("hit your session limit · resets 2:30pm (UTC)", NOON + timedelta(hours=2.5)),
        ("hit your session limit · resets 12am (UTC)", NOON + timedelta(hours=12)),
        ("hit your session limit · resets 12pm (UTC)", NOON + timedelta(days=1)),
        ("hit your session limit · resets 3am (UTC)", NOON + timedelta(hours=15)),
        ("hit your session limit · resets 4pm (Europe/Berlin)", NOON + timedelta(hours=2)),
        ("hit your weekly limit · resets Sep 15, 3am (Europe/Dublin)", datetime(2026, 9, 15, 2, tzinfo=UTC)),
        ("hit your limit · resets Sep 12 at 4pm (America/Recife)", datetime(2026, 9, 12, 19, tzinfo=UTC)),
        ("usage limit reached|1789133400", datetime(2026, 9, 11, 13, 30, tzinfo=UTC)),
        ("rate limit, retry after 90 s", NOON + timedelta(seconds=90)),
        ("hit your limit · resets Jan 2, 9am (UTC)", NOON + timedelta(days=8)),  # no longer than that
        ("usage limit reached|9999999999", NOON + timedelta(days=8)),
        ("hit your limit · resets 3pm (Nowhere/Land)", NOON + timedelta(minutes=4)),
        ("hit your limit · resets 3pm (../../etc/passwd)", NOON + timedelta(minutes=4)),
        ("hit your limit · resets Foo 31, 3pm (UTC)", NOON + timedelta(minutes=4)),
        ("hit your limit · resets Feb 31, 3pm (UTC)", NOON + timedelta(minutes=4)),
        ("hit your limit · resets 3:99pm (UTC)", NOON + timedelta(minutes=4)),
        ("hit your limit", NOON + timedelta(minutes=4)),
        ("usage limit reached|1750708800", NOON + timedelta(minutes=4)),
    ],
    ids=str,
)
def test_end_of_a_limit_is_read(monkeypatch: pytest.MonkeyPatch, said: str, expected: datetime) -> None:
    monkeypatch.setattr(time, "time", NOON.timestamp)
    assert NOON + timedelta(seconds=claude_answer.pause_for(said, attempt=3)) == expected


def test_limit_without_an_end_is_waited_for_longer_each_time_up_to_an_hour() -> None:
    pauses = [claude_answer.pause_for("overloaded", attempt) for attempt in (1, 2, 3, 6, 7, 5000)]
    assert pauses == [60, 120, 240, 1920, 3600, 3600]


# Failed runs: over.

ENDS: dict[str, dict[str, Any]] = {
    "not logged in": {"answer": {"is_error": True, "result": "Not logged in · Please run /login"}, "exit": 1},
    "invalid key": {
        "answer": {"is_error": True, "result": "Invalid API key · Fix external API key"},
        "exit": 1,
    },
    "invalid key by its status": {
        "answer": {"is_error": True, "api_error_status": 401, "result": "no"},
        "exit": 1,
    },
    "expired login": {"answer": {"is_error": True, "result": "OAuth token has expired"}},
    "unknown model": {
        "answer": {
            "is_error": True,
            "api_error_status": 404,
            "result": "There's an issue with the selected model (opus-9). It may not exist.",
        },
        "exit": 1,
    },
    "unknown model of an older version": {
        "answer": {
            "is_error": True,
            "result": 'API Error: 404 {"type":"error","error":{"type":"not_found_error","message":"x"}}',
        },
        "exit": 1,
    },
    "prompt too long": {"answer": {"is_error": True, "result": "Prompt is too long"}},
    "no credit": {"answer": {"is_error": True, "result": "Credit balance is too low"}, "exit": 1},
    "budget spent": {
        "answer": {"subtype": "error_max_budget_usd", "is_error": True, "result": None},
        "exit": 1,
    },
    "invalid key on stderr": {"stderr": "warning\nInvalid API key\n", "exit": 1},
}


def test_what_trying_again_does_not_change_fails_for_good(play: Play, target: Path) -> None:
    for what, step in ENDS.items():
        job = play(step)
        assert job.status == "failed", what
        assert (job.error or "").startswith("Fail: Claude Code failed ("), what
        assert detail_of(job)["tail"]
    assert not target.exists()


@pytest.mark.parametrize(
    ("variable", "value"),
    [("QUEUECTL_CLAUDE_PERMISSION_MODE", "yolo"), ("QUEUECTL_CLAUDE", "--no-such-flag")],
)
def test_flag_that_is_refused_fails_for_good(
    queue: Queue,
    start_worker: StartWorker,
    target: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str,
) -> None:
    queue.set_config("max_attempts", 3)
    if variable == "QUEUECTL_CLAUDE":
        value = f"{os.environ[variable]} {value}"
    monkeypatch.setenv(variable, value)
    job = extract(queue, start_worker, target)
    assert (job.status, job.attempts) == ("failed", 1)
    assert "no result in its output): error: " in (job.error or "")


@pytest.mark.parametrize("kind", ["outside", "folder", "link", "below a link", "the database"])
def test_target_that_may_not_be_written_fails_for_good_before_it_costs_anything(
    queue: Queue, start_worker: StartWorker, stand_in: Claude, target: Path, tmp_path: Path, kind: str
) -> None:
    queue.set_config("max_attempts", 3)
    outside = tmp_path / "outside"
    outside.mkdir()
    (target.parent / "folder").mkdir()
    (target.parent / "link").symlink_to(outside / "file")
    (target.parent / "below a link").symlink_to(outside)
    os.link(path_of(queue), target.parent / "the database")
    paths = {"outside": outside / "file", "below a link": target.parent / kind / "file"}
    job = extract(queue, start_worker, paths.get(kind, target.parent / kind))
    assert (job.status, job.attempts, stand_in.runs()) == ("failed", 1, 0)
    assert (job.error or "").startswith("Fail: ")
    assert list(outside.iterdir()) == []


def test_missing_folders_of_the_target_are_made(
    queue: Queue, start_worker: StartWorker, target: Path
) -> None:
    path = target.parent / "a" / "b" / "answer.md"
    assert extract(queue, start_worker, path).status == "completed"
    assert path.read_text() == "an answer\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("no-such-claude-here", "program 'no-such-claude-here' not found"),
        ("/nowhere/claude -x", "program '/nowhere/claude' not found"),
        ("claude 'open", "QUEUECTL_CLAUDE: No closing quotation"),
    ],
)
def test_missing_executable_is_told_and_tried_again(
    queue: Queue,
    start_worker: StartWorker,
    target: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    told: str,
) -> None:
    """It may be installed by then, or another worker may have it."""
    queue.set_config("max_attempts", 2)
    monkeypatch.setenv("QUEUECTL_CLAUDE", words)
    job = extract(queue, start_worker, target)
    assert (job.status, job.attempts) == ("failed", 2)
    assert (job.error or "").startswith(f"CommandNotStarted: the command could not be started: {told}")


def test_missing_folder_is_told_and_tried_again(
    queue: Queue, start_worker: StartWorker, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.set_config("max_attempts", 2)
    monkeypatch.setenv("QUEUECTL_CLAUDE_FOLDER", str(tmp_path / "missing"))
    job = extract(queue, start_worker, target)
    assert (job.status, job.attempts) == ("failed", 2)
    assert str(tmp_path / "missing") in (job.error or "")


# Timeout, cancel, shutdown.


@pytest.mark.parametrize("deaf", [False, True], ids=["ends at TERM", "deaf to TERM"])
def test_timeout_ends_the_whole_group(
    queue: Queue, start_worker: StartWorker, stand_in: Claude, target: Path, deaf: bool
) -> None:
    stand_in.does({"before": "thinking", "children": [False, True], "deaf": deaf, **HANG})
    worker = start_worker()
    job = enqueue(queue, target, timeout=600)
    pids = stand_in.run()["pids"]
    stand_in.wait_hanging()
    time_out(worker, job.id)
    done = queue.wait(job.id, timeout=PATIENCE)
    assert (done.status, (done.error or "").split(":")[0]) == ("failed", "TimedOut")
    number = signal.SIGKILL if deaf else signal.SIGTERM
    assert detail_of(done) == {"exitCode": -number, "tail": "thinking"}
    assert [pid for pid in pids if is_alive(pid)] == []
    assert not target.exists()


def test_timed_out_run_is_tried_again(
    queue: Queue, start_worker: StartWorker, stand_in: Claude, target: Path
) -> None:
    queue.set_config("max_attempts", 2)
    stand_in.does(HANG, {"answer": {}})
    worker = start_worker()
    job = enqueue(queue, target, timeout=600)
    stand_in.wait_hanging()
    time_out(worker, job.id)
    done = queue.wait(job.id, timeout=PATIENCE)
    assert (done.status, done.attempts) == ("completed", 2)


def test_answer_that_came_before_the_timeout_of_a_run_that_hangs_is_not_taken(
    queue: Queue, start_worker: StartWorker, stand_in: Claude, target: Path
) -> None:
    stand_in.does({"answer": {}, **HANG})
    worker = start_worker()
    job = enqueue(queue, target, timeout=600)
    stand_in.wait_hanging()
    time_out(worker, job.id)
    done = queue.wait(job.id, timeout=PATIENCE)
    assert (done.status, target.exists()) == ("failed", False)


def test_cancel_ends_the_whole_group(
    queue: Queue, start_worker: StartWorker, stand_in: Claude, target: Path
) -> None:
    stand_in.does({"children": [False, True], **HANG})
    start_worker()
    job = enqueue(queue, target)
    pids = stand_in.run()["pids"]
    queue.cancel(job.id)
    assert queue.wait(job.id, timeout=PATIENCE).status == "cancelled"
    assert [pid for pid in pids if is_alive(pid)] == []
    assert not target.exists()


def test_file_of_the_prompt_is_gone_before_the_run_begins(
    queue: Queue, start_worker: StartWorker, stand_in: Claude, target: Path, home: Path
) -> None:
    """So none is left by a worker that is killed."""
    stand_in.does(HANG)
    start_worker()
    job = enqueue(queue, target)
    assert stand_in.run()["prompt"] == "What is it?"
    assert list((home / "prompts").iterdir()) == []
    queue.cancel(job.id)
    queue.wait(job.id, timeout=PATIENCE)


def test_shutdown_ends_the_whole_group_and_gives_the_job_back(
    queue: Queue, start_worker: StartWorker, stand_in: Claude, target: Path, recorder: Recorder
) -> None:
    stand_in.does({"children": [False, True], **HANG}, {"answer": {}})
    worker = start_worker()
    job = enqueue(queue, target)
    pids = stand_in.run()["pids"]
    worker.stop(timeout=0.1)
    recorder.wait(JobReleased, job_id=job.id)
    assert [pid for pid in pids if is_alive(pid)] == []
    start_worker()
    done = queue.wait(job.id, timeout=PATIENCE)
    assert (done.status, done.attempts) == ("completed", 1)


def test_what_a_run_leaves_in_the_background_ends_with_it(
    queue: Queue, start_worker: StartWorker, stand_in: Claude, target: Path
) -> None:
    stand_in.does({"children": [False, True], "answer": {}})
    assert extract(queue, start_worker, target).status == "completed"
    assert [pid for pid in stand_in.run()["pids"] if is_alive(pid)] == []


def test_extraction_may_take_ten_minutes(queue: Queue) -> None:
    handler = queue.registry.find(CLAUDE_EXTRACTION)
    assert handler is not None
    assert handler.options["job_timeout"] == 600


# Output without measure, and secrets.


def test_much_output_costs_little_memory_and_the_answer_is_found(
    queue: Queue, start_worker: StartWorker, stand_in: Claude, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claude, "MAX_OUTPUT", 1_000_000)
    longest = []
    cut = claude._Output._cut

    def watched(self: Any) -> None:
        longest.append(len(self._data))
        cut(self)

    monkeypatch.setattr(claude._Output, "_cut", watched)
    stand_in.does({"megabytes": 40, "answer": {}})
    assert extract(queue, start_worker, target).status == "completed"
    assert longest
    assert max(longest) < 2_200_000


def test_answer_beyond_measure_fails_the_attempt(
    queue: Queue, start_worker: StartWorker, stand_in: Claude, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claude, "MAX_OUTPUT", 1_000_000)
    stand_in.does({"before": '{"type":"result","is_error":false,"result":"', "megabytes": 3, "after": '"}'})
    job = extract(queue, start_worker, target)
    assert job.status == "failed"
    assert "no result in more than 1000000 bytes of output" in (job.error or "")
    assert len(detail_of(job)["tail"]) == claude_answer.TAIL_CHARACTERS
    assert not target.exists()


LEAKS: dict[str, Step] = {
    "stderr": {"stderr": "bad key sk-ant-abcdefghijkl and xyzzy-of-the-server\n", "exit": 1},
    "result": {"answer": {"is_error": True, "result": "bad key sk-ant-abcdefghijkl\n"}},
    "for good": {"answer": {"is_error": True, "result": "Invalid API key sk-ant-abcdefghijkl"}, "exit": 1},
    "limit": {"answer": {"is_error": True, "result": "rate limit of sk-ant-abcdefghijkl"}, "exit": 1},
    "answer": {"answer": {"result": "sk-ant-abcdefghijkl"}, "exit": 1},
    "at the cut": {"answer": {"is_error": True, "result": "x" * 1995 + "sk-ant-abcdefghijkl"}, "exit": 1},
    "at the cut of the tail": {
        "stderr": "sk-ant-abcdefghijkl" + "x" * (claude_answer.TAIL_CHARACTERS - 4),
        "exit": 1,
    },
}


def test_secrets_of_the_environment_are_not_in_the_history(
    queue: Queue, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-abcdefghijkl")
    monkeypatch.setenv("A_SECRET", "sk-ant-abcdefgh")
    monkeypatch.setenv("QUEUECTL_TOKEN", "xyzzy-of-the-server")
    for what, step in LEAKS.items():
        job = play(step)
        assert job.errors, what
        kept = repr(sql(queue, "SELECT * FROM holdfast_jobs")) + repr(job)
        for part in ("sk-an", "ijkl", "xyzzy"):
            assert part not in kept, what


# The type as a whole.


def test_module_is_cheap_to_import() -> None:
    """It is imported wherever an extraction is enqueued."""
    source = (
        "import sys, holdfast.context, holdfast.jobs.files\n"
        "before = set(sys.modules)\n"
        "import holdfast.jobs.claude\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=True
    )
    assert not set(done.stdout.split()) & {
        "shlex",
        "shutil",
        "zoneinfo",
        "subprocess",
        "holdfast.jobs.command",
    }


def test_stand_in_is_an_executable() -> None:
    assert os.access(STAND_IN, os.X_OK)
    done = subprocess.run([STAND_IN, "--what"], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (1, "error: unknown option '--what'\n")
