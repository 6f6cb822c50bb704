"""create_file and delete_file: what they promise of files, of payloads, and of all that lies outside."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import io
import json
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest

from holdfast import Context, Job, Queue
from holdfast.errors import InvalidPayload, LeaseLost
from holdfast.events import HandlerErrorIgnored, JobCompleted, OutcomeRefused
from holdfast.jobs import CREATE_FILE, DELETE_FILE, files, install
from holdfast.jobs.files import publish
from holdfast.jobs.roots import LONGEST_NAME, VARIABLE
from holdfast.store.open import store_of
from holdfast.transaction import Transaction
from holdfast.worker.maintenance import reap
from tests.support import Recorder, wait_until
from tests.surfaces.support import queuectl
from tests.worker.support import PATIENCE, doubt_commit, get, path_of, sql, supersede

pytestmark = pytest.mark.slow

StartWorker = Callable[..., Any]

ABSENT: Any = object()
ATTEMPTS = 3


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The one folder that may be touched; this process stands in it."""
    for name in [name for name in os.environ if name.startswith("QUEUECTL_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "root"
    folder.mkdir()
    monkeypatch.setenv(VARIABLE, str(folder))
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def plain(queue: Queue, root: Path) -> Queue:
    """A queue that only enqueues, as an application has it: no handler is installed."""
    return queue


@pytest.fixture
def queue_with_files(queue: Queue, root: Path) -> Queue:
    """A queue that runs file jobs here, when it is drained; what is retried is due at once."""
    register(queue)
    queue.set_config("backoff_base", 0.001)
    queue.set_config("max_attempts", ATTEMPTS)
    return queue


def register(queue: Queue) -> None:
    """What `install` does for these two types."""
    queue.register(CREATE_FILE, files.create_file, prepare=files.with_whole_path)
    queue.register(DELETE_FILE, files.delete_file, prepare=files.with_whole_path)


def run(queue: Queue, type: str, path: Path | str, **payload: Any) -> Job:
    """Run one job to its end, here."""
    job = queue.enqueue(type, {"path": str(path), **payload})
    return finish(queue, job.id)


def finish(queue: Queue, job_id: str) -> Job:
    for _ in range(100):
        queue.drain()
        job = get(queue, job_id)
        if job.status in ("completed", "failed", "cancelled"):
            return job
    raise AssertionError(f"the job is {job.status} still")


def create(queue: Queue, path: Path | str, content: Any, **payload: Any) -> Job:
    return run(queue, CREATE_FILE, path, content=content, **payload)


def delete(queue: Queue, path: Path | str, **payload: Any) -> Job:
    return run(queue, DELETE_FILE, path, **payload)


def tree(folder: Path) -> dict[str, Any]:
    """All that is in a folder, hidden files too: what each file holds, where each link leads."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"
        else:
            found[name] = path.read_bytes() if path.is_file() else None
    return found


def failed_at_once(job: Job) -> str:
    """Why a job failed for good in its first attempt."""
    assert (job.status, job.attempts) == ("failed", 1), (job.status, job.attempts, job.error)
    assert job.error is not None
    return job.error


def doubt_completion(monkeypatch: pytest.MonkeyPatch, queue: Queue, *, happened: bool) -> None:
    """Let the commit that completes the next job fail; it may have `happened` all the same."""
    begin = Context.transaction
    begun: list[Context] = []

    def doubtful(ctx: Context) -> Transaction:
        if not begun:
            doubt_commit(monkeypatch, queue, 1, happened=happened)
        begun.append(ctx)
        return begin(ctx)

    monkeypatch.setattr(Context, "transaction", doubtful)


class Faulty:
    """A function of `os` that fails some of its next calls: `monkeypatch.setattr(os, name, Faulty(...))`.

    Only those of file jobs, which name files relative to a folder.
    """

    def __init__(self, function: Callable[..., Any], number: int, times: int) -> None:
        self._function = function
        self._errors = [OSError(number, os.strerror(number)) for _ in range(times)]
        self.raised = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._errors and (kwargs.keys() & {"dir_fd", "src_dir_fd"} or isinstance(args[0], int)):
            self.raised += 1
            raise self._errors.pop()
        return self._function(*args, **kwargs)


# create_file: what is in the file.


@pytest.mark.parametrize(
    ("content", "written"),
    [
        ("", ""),
        ("text\n", "text\n"),
        ("no end of line", "no end of line"),
        ('{"as": "it is"}', '{"as": "it is"}'),
        ("\r\nü \u2028 \U0001f600 \u202e", "\r\nü \u2028 \U0001f600 \u202e"),
        (None, "null\n"),
        (True, "true\n"),
        (False, "false\n"),
        (0, "0\n"),
        (-7, "-7\n"),
        (2**53 + 1, "9007199254740993\n"),
        (10**30, "1" + "0" * 30 + "\n"),
        (0.1, "0.1\n"),
        ([], "[]\n"),
        ({}, "{}\n"),
        ([1, "ü", None], '[\n  1,\n  "ü",\n  null\n]\n'),
        ({"b": {"a": [True]}, "a": 1.5}, '{\n  "b": {\n    "a": [\n      true\n    ]\n  },\n  "a": 1.5\n}\n'),
    ],
)
def test_text_is_written_as_it_is_and_any_other_value_as_json(
    queue_with_files: Queue, root: Path, content: Any, written: str
) -> None:
    job = create(queue_with_files, root / "a", content)
    assert (job.status, job.attempts) == ("completed", 1), job.error
    assert tree(root) == {"a": written.encode()}
    assert job.result == {
        "path": str(root / "a"),
        "bytes": len(written.encode()),
        "sha256": hashlib.sha256(written.encode()).hexdigest(),
        "changed": True,
    }
    if not isinstance(content, str):
        assert json.loads(written) == content


def test_large_content_is_written_whole(queue_with_files: Queue, root: Path) -> None:
    queue_with_files.set_config("max_payload_bytes", 8_000_000)
    content = "0123456789abcdef" * 250_000
    assert create(queue_with_files, root / "a", content).status == "completed"
    assert (root / "a").read_text() == content


def test_worker_process_runs_both_types(
    queue_with_files: Queue, start_worker: StartWorker, root: Path, recorder: Recorder
) -> None:
    start_worker(concurrency=4)
    payloads = [{"path": f"{number}", "content": number} for number in range(20)]
    for job in queue_with_files.enqueue_many(CREATE_FILE, payloads):
        assert queue_with_files.wait(job.id, timeout=PATIENCE).status == "completed"
    assert tree(root) == {f"{number}": f"{number}\n".encode() for number in range(20)}
    for job in queue_with_files.enqueue_many(DELETE_FILE, [{"path": f"{n}"} for n in range(20)]):
        assert queue_with_files.wait(job.id, timeout=PATIENCE).result["changed"] is True
    assert tree(root) == {}
    recorder.wait(JobCompleted, count=40)
    assert recorder.all(HandlerErrorIgnored) == []


def test_types_are_there_once_they_are_installed(queue: Queue, root: Path) -> None:
    install(queue)
    assert create(queue, "a", "x").status == "completed"
    assert delete(queue, "a").result == {"path": str(root / "a"), "changed": True}


def test_lanes_are_run_and_checked_like_their_type(queue_with_files: Queue, root: Path) -> None:
    job = run(queue_with_files, f"{CREATE_FILE}:slow", "a", content="x")
    assert (job.status, job.payload["path"]) == ("completed", str(root / "a"))
    with pytest.raises(InvalidPayload):
        queue_with_files.enqueue(f"{CREATE_FILE}:slow", {"path": "a"})


def test_new_file_has_the_mode_that_the_process_gives_its_files(queue_with_files: Queue, root: Path) -> None:
    before = os.umask(0o027)
    try:
        create(queue_with_files, root / "a", "x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((root / "a").stat().st_mode) == 0o640


def test_missing_folders_are_made(queue_with_files: Queue, root: Path) -> None:
    assert create(queue_with_files, root / "a/b/c", "x").status == "completed"
    assert tree(root) == {"a": None, "a/b": None, "a/b/c": b"x"}


# create_file: what was there before.


@pytest.mark.parametrize("overwrite", [True, False])
def test_same_content_is_success_and_leaves_the_file_alone(
    queue_with_files: Queue, root: Path, overwrite: bool
) -> None:
    (root / "a").write_text("null\n")
    before = (root / "a").stat()
    job = create(queue_with_files, root / "a", None, overwrite=overwrite)
    assert job.status == "completed"
    assert job.result["changed"] is False
    assert (job.result["bytes"], job.result["sha256"]) == (5, hashlib.sha256(b"null\n").hexdigest())
    after = (root / "a").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert tree(root) == {"a": b"null\n"}


@pytest.mark.parametrize("old", ["", "ne", "nEw", "new ", "old"])
def test_other_content_without_overwrite_fails_for_good_and_stays(
    queue_with_files: Queue, root: Path, old: str
) -> None:
    (root / "a").write_text(old)
    before = (root / "a").stat()
    error = failed_at_once(create(queue_with_files, root / "a", "new"))
    assert (
        error == f"Fail: {str(root / 'a')!r} already exists with different content, and overwrite is not set"
    )
    after = (root / "a").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert tree(root) == {"a": old.encode()}


def test_overwrite_replaces_the_content_and_keeps_the_mode(queue_with_files: Queue, root: Path) -> None:
    (root / "a").write_text("old")
    for mode in (0o600, 0o755, 0o444):
        (root / "a").chmod(mode)
        job = create(queue_with_files, root / "a", f"new {mode}", overwrite=True)
        assert (job.status, job.result["changed"]) == ("completed", True)
        assert stat.S_IMODE((root / "a").stat().st_mode) == mode
        assert tree(root) == {"a": f"new {mode}".encode()}


def test_overwrite_keeps_no_setuid_setgid_or_sticky_bit(queue_with_files: Queue, root: Path) -> None:
    """The new file belongs to the worker's user, who did not set them."""
    path = root / "tool"
    path.write_text("old")
    path.chmod(0o7751)
    assert create(queue_with_files, path, "new", overwrite=True).status == "completed"
    assert stat.S_IMODE(path.stat().st_mode) == 0o751


def test_overwrite_replaces_the_file_so_that_who_reads_the_old_one_reads_it_whole(
    queue_with_files: Queue, root: Path
) -> None:
    (root / "a").write_text("old")
    os.link(root / "a", root / "second name")
    with (root / "a").open() as reader:
        create(queue_with_files, root / "a", "new", overwrite=True)
        assert reader.read() == "old"
    assert tree(root) == {"a": b"new", "second name": b"old"}


def test_overwrite_of_nothing_makes_the_file(queue_with_files: Queue, root: Path) -> None:
    assert create(queue_with_files, root / "a", "new", overwrite=True).result["changed"] is True
    assert tree(root) == {"a": b"new"}


def test_file_that_comes_at_the_last_moment_is_not_replaced(
    queue_with_files: Queue, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def too_late(*args: Any, **kwargs: Any) -> None:
        (root / "a").write_text("another's")
        link(*args, **kwargs)

    monkeypatch.setattr(os, "link", too_late)
    job = create(queue_with_files, root / "a", "new")
    assert (job.status, job.attempts) == ("failed", 2)
    assert "already exists with different content" in (job.error or "")
    assert tree(root) == {"a": b"another's"}


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS])
def test_file_system_without_second_names_is_written_all_the_same(
    queue_with_files: Queue, root: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    faulty = Faulty(os.link, number, times=1)
    monkeypatch.setattr(os, "link", faulty)
    job = create(queue_with_files, root / "a", "new")
    assert (job.status, job.attempts, faulty.raised) == ("completed", 1, 1)
    assert tree(root) == {"a": b"new"}


# The order of the steps: on disk before it has its name, and the name before the job is completed.


@pytest.mark.parametrize(("overwrite", "step"), [(True, "rename"), (False, "link")])
def test_content_is_on_disk_before_it_gets_its_name_and_the_name_before_the_commit(
    queue_with_files: Queue, root: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool, step: str
) -> None:
    steps: list[str] = []
    job_id = "the-job"

    def record(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(*args: Any, **kwargs: Any) -> Any:
            if name == "fsync":
                synced = Path(os.readlink(f"/proc/self/fd/{args[0]}"))
                held = synced.read_bytes() if synced.is_file() else b""
                steps.append("fsync of the folder" if synced == root else f"fsync of {held.decode()}")
            else:
                steps.append(name)
            if name != "fsync" or steps[-1] == "fsync of the folder":
                assert get(queue_with_files, job_id).status == "processing"
            return function(*args, **kwargs)

        return recorded

    for name in ("fsync", "link", "rename"):
        monkeypatch.setattr(os, name, record(name, getattr(os, name)))
    queue_with_files.enqueue(CREATE_FILE, {"path": "a", "content": "new", "overwrite": overwrite}, id=job_id)
    assert finish(queue_with_files, job_id).status == "completed"
    assert steps == ["fsync of new", step, "fsync of the folder"]


# delete_file.


@pytest.mark.parametrize("require", [True, False])
def test_file_is_removed(queue_with_files: Queue, root: Path, require: bool) -> None:
    (root / "a").write_text("old")
    (root / "b").write_text("stays")
    job = delete(queue_with_files, root / "a", requireExists=require)
    assert (job.status, job.attempts) == ("completed", 1), job.error
    assert job.result == {"path": str(root / "a"), "changed": True}
    assert tree(root) == {"b": b"stays"}


@pytest.mark.parametrize("path", ["a", "no/folder/a"])
def test_missing_file_is_success_unless_it_is_required(
    queue_with_files: Queue, root: Path, path: str
) -> None:
    job = delete(queue_with_files, path)
    assert (job.status, job.result) == ("completed", {"path": str(root / path), "changed": False})
    assert failed_at_once(delete(queue_with_files, path, requireExists=True)).endswith(" does not exist")
    assert tree(root) == {}


def test_removal_is_on_disk_before_the_job_is_completed(
    queue_with_files: Queue, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "a").write_text("old")
    seen: list[tuple[bool, str]] = []
    fsync = os.fsync

    def record(file: int) -> None:
        assert os.readlink(f"/proc/self/fd/{file}") == str(root)
        seen.append(((root / "a").exists(), get(queue_with_files, "the-job").status))
        fsync(file)

    monkeypatch.setattr(os, "fsync", record)
    queue_with_files.enqueue(DELETE_FILE, {"path": "a", "requireExists": True}, id="the-job")
    assert finish(queue_with_files, "the-job").status == "completed"
    assert seen == [(True, "processing"), (False, "processing")]  # of the mark, of the removal


@pytest.mark.parametrize("happened", [True, False])
def test_file_that_an_earlier_attempt_removed_is_no_missing_file(
    queue_with_files: Queue, root: Path, monkeypatch: pytest.MonkeyPatch, happened: bool
) -> None:
    (root / "a").write_text("old")
    doubt_completion(monkeypatch, queue_with_files, happened=happened)
    queue_with_files.enqueue(DELETE_FILE, {"path": "a", "requireExists": True}, id="the-job")
    job = finish(queue_with_files, "the-job")
    assert (job.status, job.attempts) == ("completed", 1 if happened else 2), job.error
    assert job.result["changed"] is happened
    assert tree(root) == {}


@pytest.mark.parametrize("make", [os.mkfifo, Path.touch], ids=["a fifo", "a file"])
def test_what_has_the_name_of_a_mark_is_not_opened(
    queue_with_files: Queue, root: Path, make: Callable[[Path], None]
) -> None:
    (root / "file").touch()
    job = queue_with_files.enqueue(DELETE_FILE, {"path": "file", "requireExists": True})
    origin = hashlib.sha256(get(queue_with_files, job.id).origin.encode()).hexdigest()[:20]
    make(root / f".holdfast-{origin}-seen-1")  # to open a FIFO would hang
    assert finish(queue_with_files, job.id).status == "completed"
    assert tree(root) == {}


def test_mark_of_one_job_says_nothing_to_another(
    queue_with_files: Queue, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "a").write_text("old")
    queue_with_files.set_config("backoff_base", 3600)
    doubt_completion(monkeypatch, queue_with_files, happened=False)
    waiting = queue_with_files.enqueue(DELETE_FILE, {"path": "a", "requireExists": True})
    queue_with_files.drain()
    assert get(queue_with_files, waiting.id).status == "scheduled"
    assert failed_at_once(delete(queue_with_files, "a", requireExists=True)).endswith(" does not exist")
    queue_with_files.retry(waiting.id)
    assert finish(queue_with_files, waiting.id).status == "completed"
    assert tree(root) == {}


def test_file_that_is_gone_at_the_last_moment_is_removed(
    queue_with_files: Queue, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "a").write_text("old")
    begin = Context.transaction

    def too_late(ctx: Context) -> Any:
        (root / "a").unlink()
        return begin(ctx)

    monkeypatch.setattr(Context, "transaction", too_late)
    assert delete(queue_with_files, "a", requireExists=True).status == "completed"
    assert tree(root) == {}


# A relative path belongs to the process that enqueues it.


def test_relative_path_is_stored_whole_by_every_way_to_enqueue(
    plain: Queue, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    payload = {"path": "sub/../a", "content": None, "overwrite": True}
    jobs = [
        plain.enqueue(CREATE_FILE, payload),
        *plain.enqueue_many(CREATE_FILE, [payload, payload]),
        *(job for job, _ in plain.enqueue_batch([(CREATE_FILE, payload, {})])),
        plain.enqueue(DELETE_FILE, {"path": "sub/../a"}),
    ]
    monkeypatch.chdir("/")
    assert [get(plain, job.id).payload["path"] for job in jobs] == [str(root / "a")] * 5
    assert get(plain, jobs[0].id).payload == {"path": str(root / "a"), "content": None, "overwrite": True}


async def _enqueue(queue: Queue, type: str, payload: dict[str, Any]) -> Job:
    return await queue.enqueue_async(type, payload)


def test_relative_path_is_stored_whole_from_async_code(plain: Queue, root: Path) -> None:
    import asyncio

    job = asyncio.run(_enqueue(plain, DELETE_FILE, {"path": "a"}))
    assert get(plain, job.id).payload == {"path": str(root / "a")}


@pytest.mark.process
def test_relative_path_is_stored_whole_by_queuectl(
    plain: Queue, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, folder = tmp_path / "home", tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    env = {"QUEUECTL_DATABASE_URL": plain.url}
    payload = {"path": "b.json", "content": {"x": 1}}
    line = json.dumps({"type": CREATE_FILE, "payload": payload, "id": "by-file"})
    (folder / "jobs.jsonl").write_text(f"{line}\n")
    words = ("enqueue", "--type", CREATE_FILE, "--payload", json.dumps(payload), "--id", "by-flags")
    ran = queuectl(home, *words, env=env, cwd=folder)
    assert (ran.code, ran.lines) == (0, ["by-flags"]), ran
    ran = queuectl(home, "enqueue", "--file", "jobs.jsonl", env=env, cwd=folder)
    assert (ran.code, ran.lines) == (0, ["by-file"]), ran
    for id in ("by-flags", "by-file"):
        assert get(plain, id).payload == {"path": str(folder / "b.json"), "content": {"x": 1}}


@pytest.mark.process
def test_wrong_payload_is_refused_by_queuectl(plain: Queue, root: Path, tmp_path: Path) -> None:
    env = {"QUEUECTL_DATABASE_URL": plain.url}
    words = ("enqueue", "--type", CREATE_FILE, "--payload", '{"path": "a/", "content": "x"}')
    ran = queuectl(tmp_path / "home", *words, env=env, cwd=root)
    assert (ran.code != 0, ran.out) == (True, "")
    assert "payload.path: names a folder, not a file" in ran.err
    assert plain.count() == 0


def test_child_of_a_job_has_a_whole_path(queue_with_files: Queue, root: Path) -> None:
    @queue_with_files.job
    def parent(ctx: Context) -> str:
        return ctx.enqueue(CREATE_FILE, {"path": "child", "content": "x"})

    job = finish(queue_with_files, parent.enqueue().id)
    child = get(queue_with_files, job.result)
    assert (child.payload["path"], child.parent_id) == (str(root / "child"), job.id)
    assert tree(root) == {"child": b"x"}


def test_wrong_child_is_refused_where_it_is_enqueued(queue_with_files: Queue, root: Path) -> None:
    @queue_with_files.job(max_attempts=1)
    def parent(ctx: Context) -> str:
        return ctx.enqueue(CREATE_FILE, {"path": "", "content": "x"})

    assert "payload.path: must not be empty" in (finish(queue_with_files, parent.enqueue().id).error or "")


@pytest.mark.parametrize("installed", [True, False])
def test_payload_of_a_retry_is_checked_and_its_path_made_whole(
    queue_with_files: Queue, root: Path, installed: bool
) -> None:
    (root / "a").write_text("another's")
    job = create(queue_with_files, "a", "x")
    assert job.status == "failed"
    if not installed:
        queue_with_files.unregister(CREATE_FILE)
        queue_with_files.unregister(DELETE_FILE)
    with pytest.raises(InvalidPayload, match="names a folder"):
        queue_with_files.retry(job.id, {"path": "b/", "content": "x"})
    with pytest.raises(InvalidPayload, match="contains unknown field mode"):
        queue_with_files.retry(job.id, {"path": "b", "content": "x", "mode": 1})
    queue_with_files.retry(job.id, {"path": "b", "content": "x"})
    assert get(queue_with_files, job.id).payload["path"] == str(root / "b")
    if not installed:
        register(queue_with_files)
    assert finish(queue_with_files, job.id).status == "completed"
    assert tree(root) == {"a": b"another's", "b": b"x"}


# Wrong payloads are refused where they are enqueued, with the place.


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize(
    ("type", "payload", "where", "problem"),
    [
        (CREATE_FILE, {}, "payload", "object missing required field path"),
        (CREATE_FILE, {"content": "x"}, "payload", "object missing required field path"),
        (CREATE_FILE, {"path": "a"}, "payload", "object missing required field content"),
        (CREATE_FILE, {"path": None, "content": "x"}, "payload.path", "expected str, got null"),
        (CREATE_FILE, {"path": ["a"], "content": "x"}, "payload.path", "expected str, got array"),
        (CREATE_FILE, {"path": "", "content": "x"}, "payload.path", "must not be empty"),
        (CREATE_FILE, {"path": "a\0", "content": "x"}, "payload.path", "NUL character"),
        (CREATE_FILE, {"path": "a/", "content": "x"}, "payload.path", "names a folder, not a file"),
        (CREATE_FILE, {"path": "..", "content": "x"}, "payload.path", "names a folder, not a file"),
        (CREATE_FILE, {"path": "~/a", "content": "x"}, "payload.path", "begins with ~"),
        (CREATE_FILE, {"path": "n" * 256, "content": "x"}, "payload.path", "a name longer than 255 bytes"),
        (CREATE_FILE, {"path": "n/" * 2100 + "n", "content": "x"}, "payload.path", "longer than 4095"),
        (CREATE_FILE, {"path": "a", "content": "x", "mode": 1}, "payload", "contains unknown field mode"),
        (
            CREATE_FILE,
            {"path": "a", "content": "x", "overwrite": "yes"},
            "payload.overwrite",
            "expected bool",
        ),
        (CREATE_FILE, {"path": "a", "content": "x", "overwrite": 1}, "payload.overwrite", "expected bool"),
        (CREATE_FILE, {"path": "a", "content": "x", "overwrite": None}, "payload.overwrite", "expected bool"),
        (CREATE_FILE, {"path": "a", "content": float("nan")}, "payload.content", ""),
        (CREATE_FILE, {"path": "a", "content": "\ud800"}, "payload.content", ""),
        (CREATE_FILE, {"path": "\udcff", "content": "x"}, "payload.path", ""),
        (CREATE_FILE, ["a", "x"], "payload", ""),
        (DELETE_FILE, {}, "payload", "object missing required field path"),
        (DELETE_FILE, {"path": ""}, "payload.path", "must not be empty"),
        (DELETE_FILE, {"path": "a/."}, "payload.path", "names a folder, not a file"),
        (DELETE_FILE, {"path": "a", "requireExists": "no"}, "payload.requireExists", "expected bool"),
        (DELETE_FILE, {"path": "a", "require_exists": True}, "payload", "unknown field require_exists"),
        (DELETE_FILE, {"path": "a", "content": "x"}, "payload", "contains unknown field content"),
    ],
)
def test_wrong_payload_is_refused_with_its_place(
    queue: Queue, root: Path, type: str, payload: Any, where: str, problem: str, installed: bool
) -> None:
    if installed:
        register(queue)
    with pytest.raises(InvalidPayload) as caught:
        queue.enqueue(type, payload)
    assert caught.value.where == where
    assert problem in caught.value.problem
    assert queue.count() == 0
    assert tree(root) == {}


def test_wrong_payload_among_many_stores_none(plain: Queue) -> None:
    good = {"path": "a", "content": "x"}
    with pytest.raises(InvalidPayload, match="must not be empty"):
        plain.enqueue_many(CREATE_FILE, [good, {**good, "path": ""}])
    assert plain.count() == 0


# Roots.


def test_path_outside_the_roots_of_the_worker_fails_for_good(
    queue_with_files: Queue, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "kept").write_text("old")
    before = tree(tmp_path / "beside")
    error = failed_at_once(create(queue_with_files, tmp_path / "beside/new", "x"))
    assert "is outside the file roots" in error
    assert VARIABLE in error
    failed_at_once(create(queue_with_files, tmp_path / "beside/kept", "x", overwrite=True))
    failed_at_once(delete(queue_with_files, tmp_path / "beside/kept"))
    assert tree(tmp_path / "beside") == before
    monkeypatch.setenv(VARIABLE, os.pathsep.join([str(root), "../beside"]))
    assert create(queue_with_files, tmp_path / "beside/new", "x").status == "completed"
    assert tree(tmp_path / "beside") == {**before, "new": b"x"}


def test_worker_without_a_folder_for_files_fails_file_jobs_for_good(
    queue_with_files: Queue, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("HOME", str(root))
    assert "has no file roots" in failed_at_once(create(queue_with_files, root / "a", "x"))
    monkeypatch.setenv("HOME", "/nowhere")
    assert create(queue_with_files, root / "a", "x").status == "completed"
    assert tree(root) == {"a": b"x"}


def test_root_that_is_not_mounted_yet_is_waited_for(
    queue_with_files: Queue, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = tmp_path / "late"
    monkeypatch.setenv(VARIABLE, str(late))
    job = queue_with_files.enqueue(CREATE_FILE, {"path": str(late / "a"), "content": "x"})
    queue_with_files.drain(limit=1)
    assert "does not exist" in (get(queue_with_files, job.id).error or "")
    late.mkdir()
    assert (finish(queue_with_files, job.id).attempts, tree(late)) == (2, {"a": b"x"})


# Errors: permanent ones end the job, the others are tried again. Nothing else stays in the folder.


@pytest.mark.parametrize("type", [CREATE_FILE, DELETE_FILE])
@pytest.mark.parametrize(
    ("make", "path", "problem"),
    [
        (lambda root: (root / "a").mkdir(), "a", "is a folder, not a file"),
        (lambda root: (root / "a").write_text("x"), "a/b", "goes through 'a', which is a file"),
        (lambda root: (root / "a").symlink_to("b"), "a", "is a symbolic link, not a file"),
        (lambda root: (root / "a").symlink_to("."), "a/b", "goes through 'a', which is a symbolic link"),
        (lambda root: os.mkfifo(root / "a"), "a", "is a device or socket, not a file"),
    ],
)
def test_what_is_no_file_or_folder_is_left_alone_and_fails_for_good(
    queue_with_files: Queue, root: Path, type: str, make: Callable[[Path], Any], path: str, problem: str
) -> None:
    make(root)
    before = tree(root)
    payload = {"content": "x", "overwrite": True} if type == CREATE_FILE else {"requireExists": True}
    assert problem in failed_at_once(run(queue_with_files, type, path, **payload))
    assert tree(root) == before


PERMANENT = [
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENAMETOOLONG,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ELOOP,
    errno.EINVAL,
]
PASSING = [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENOMEM, errno.EBUSY, errno.ESTALE]


@pytest.mark.parametrize("step", ["open", "fsync", "rename"])
def test_error_that_stays_fails_the_job_at_once(
    queue_with_files: Queue, root: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    (root / "a").write_text("old")
    function = getattr(os, step)
    for number in PERMANENT:
        monkeypatch.setattr(os, step, Faulty(function, number, times=1))
        error = failed_at_once(create(queue_with_files, "a", "new", overwrite=True))
        assert error.startswith("Fail: ")
        assert error.endswith(f": {os.strerror(number)}")
        assert tree(root) == {"a": b"old"}


@pytest.mark.parametrize("step", ["open", "fsync", "rename"])
def test_error_that_may_pass_is_tried_again(
    queue_with_files: Queue, root: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    function = getattr(os, step)
    for number in PASSING:
        (root / "a").write_text("old")
        monkeypatch.setattr(os, step, Faulty(function, number, times=1))
        job = queue_with_files.enqueue(CREATE_FILE, {"path": "a", "content": "new", "overwrite": True})
        queue_with_files.drain(limit=1)
        waiting = get(queue_with_files, job.id)
        assert (waiting.status in ("scheduled", "pending"), waiting.attempts) == (True, 1)
        assert os.strerror(number) in (waiting.error or "")
        assert tree(root) == {"a": b"old"}
        assert (finish(queue_with_files, job.id).status, tree(root)) == ("completed", {"a": b"new"})


@pytest.mark.parametrize("type", [CREATE_FILE, DELETE_FILE])
def test_error_that_stays_until_the_last_attempt_fails_the_job(
    queue_with_files: Queue, root: Path, monkeypatch: pytest.MonkeyPatch, type: str
) -> None:
    (root / "a").write_text("old")
    monkeypatch.setattr(os, "fsync", Faulty(os.fsync, errno.EIO, times=ATTEMPTS))
    payload = {"content": "x", "overwrite": True} if type == CREATE_FILE else {}
    job = run(queue_with_files, type, "a", **payload)
    assert (job.status, job.attempts) == ("failed", ATTEMPTS)
    # Whatever the disk kept: the content is whole, and there is nothing else.
    assert tree(root) in ({"a": b"old"}, {})
    queue_with_files.retry(job.id)
    assert finish(queue_with_files, job.id).status == "completed"
    assert tree(root) == ({"a": b"x"} if type == CREATE_FILE else {})


class FullDisk(io.BufferedWriter):
    """A stream to a disk that takes half of what is written."""

    def write(self, data: Any) -> int:
        super().write(data[: len(data) // 2])
        self.flush()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_half_written_content_is_never_seen_and_does_not_stay(
    queue_with_files: Queue, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "a").write_text("old")
    monkeypatch.setattr(files, "open", lambda file, mode: FullDisk(io.FileIO(file, mode)), raising=False)
    job = queue_with_files.enqueue(CREATE_FILE, {"path": "a", "content": "new", "overwrite": True})
    queue_with_files.drain(limit=1)
    assert "No space left on device" in (get(queue_with_files, job.id).error or "")
    assert tree(root) == {"a": b"old"}
    monkeypatch.undo()
    monkeypatch.setenv(VARIABLE, str(root))
    assert (finish(queue_with_files, job.id).status, tree(root)) == ("completed", {"a": b"new"})


@pytest.mark.parametrize("in_the_way", [True, False])
def test_what_killed_attempts_left_is_cleared_away(
    queue_with_files: Queue, root: Path, monkeypatch: pytest.MonkeyPatch, in_the_way: bool
) -> None:
    begin = Context.transaction
    left: list[str] = []

    def die(ctx: Context) -> Any:
        left.extend(os.listdir(root))
        raise RuntimeError("the worker is killed here")

    monkeypatch.setattr(Context, "transaction", die)
    job = queue_with_files.enqueue(CREATE_FILE, {"path": "a", "content": "new"})
    queue_with_files.drain(limit=2)
    monkeypatch.setattr(Context, "transaction", begin)
    assert len(left) == len(set(left)) == 2
    for name in left:
        (root / name).write_text("ne")
    if in_the_way:
        (root / "a").mkdir()
    assert finish(queue_with_files, job.id).status == ("failed" if in_the_way else "completed")
    assert tree(root) == {"a": None if in_the_way else b"new"}


def test_queues_with_the_same_ids_do_not_touch_each_others_files(
    queue_with_files: Queue, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second queue's job runs while the first one's has written its content and not yet published it."""
    with Queue(f"sqlite:///{tmp_path / 'second.db'}") as second:
        register(second)
        for queue, name in ((queue_with_files, "a"), (second, "b")):
            queue.enqueue(CREATE_FILE, {"path": name, "content": name}, id="same")
        begin = Context.transaction
        seen: list[list[str]] = []

        def between(ctx: Context) -> Any:
            seen.append(sorted(os.listdir(root)))
            if len(seen) == 1:
                assert finish(second, "same").status == "completed"
            return begin(ctx)

        monkeypatch.setattr(Context, "transaction", between)
        assert finish(queue_with_files, "same").status == "completed"
    assert tree(root) == {"a": b"a", "b": b"b"}
    assert [len(names) for names in seen] == [1, 2]
    assert all(name.startswith(".holdfast-") for names in seen for name in names)


# A late attempt publishes nothing.


class Late:
    """Stands in for the handler of a type: calls it, and records how its attempts ended."""

    def __init__(self, queue: Queue, type: str, handler: Callable[..., Any]) -> None:
        self.ended: list[object] = []
        self.contexts: list[Context] = []

        def late(payload: Any, ctx: Context) -> Any:
            self.contexts.append(ctx)
            try:
                result = handler(payload, ctx)
            except BaseException as error:
                self.ended.append(error.__class__)
                raise
            self.ended.append(result)
            return result

        queue.unregister(type)
        payload_type = files.NewFile if handler is files.create_file else files.OldFile
        queue.register(type, late, payload_type=payload_type, prepare=files.with_whole_path)


@pytest.mark.parametrize("old", [None, "old"])
def test_attempt_that_lost_its_job_after_writing_publishes_nothing(
    queue_with_files: Queue, root: Path, monkeypatch: pytest.MonkeyPatch, recorder: Recorder, old: str | None
) -> None:
    if old is not None:
        (root / "a").write_text(old)
    before = tree(root)
    late = Late(queue_with_files, CREATE_FILE, files.create_file)
    fsync = os.fsync
    written: list[bytes] = []

    def lose(file: int) -> None:
        fsync(file)
        written.append(Path(f"/proc/self/fd/{file}").read_bytes())
        supersede(queue_with_files, "the-job")

    monkeypatch.setattr(os, "fsync", lose)
    queue_with_files.enqueue(CREATE_FILE, {"path": "a", "content": "new", "overwrite": True}, id="the-job")
    queue_with_files.drain(limit=1)
    assert late.ended == [LeaseLost]
    assert written == [b"new"]
    assert tree(root) == before
    job = get(queue_with_files, "the-job")
    assert (job.status, job.worker_id, job.result, job.error) == ("processing", "another", None, None)


@pytest.mark.parametrize("require", [True, False])
def test_attempt_that_lost_its_job_removes_nothing(
    queue_with_files: Queue, root: Path, monkeypatch: pytest.MonkeyPatch, require: bool
) -> None:
    (root / "a").write_text("old")
    late = Late(queue_with_files, DELETE_FILE, files.delete_file)
    begin = Context.transaction

    def lose(ctx: Context) -> Any:
        supersede(queue_with_files, "the-job")
        return begin(ctx)

    monkeypatch.setattr(Context, "transaction", lose)
    queue_with_files.enqueue(DELETE_FILE, {"path": "a", "requireExists": require}, id="the-job")
    queue_with_files.drain(limit=1)
    assert late.ended == [LeaseLost]
    assert tree(root) == {"a": b"old"}
    assert get(queue_with_files, "the-job").status == "processing"


@pytest.mark.parametrize("type", [CREATE_FILE, DELETE_FILE])
def test_late_attempt_does_not_touch_what_its_successor_has_written(
    queue_with_files: Queue,
    other_queue: Queue,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    type: str,
) -> None:
    """The late one was stopped before its first line; it goes on when its successor is about to publish."""
    (root / "a").write_text("old")
    handler: Callable[..., Any] = files.create_file if type == CREATE_FILE else files.delete_file
    begin = Context.transaction
    late: list[Callable[[], object]] = []
    seen: list[dict[str, Any]] = []

    def stopped(payload: Any, ctx: Context) -> Any:
        late.append(lambda: handler(payload, ctx))
        with store_of(queue_with_files).transaction():
            store, worker = store_of(queue_with_files), get(queue_with_files, "the-job").worker_id
            reap(store, store.list_held(worker or ""), queue_with_files.settings(), expired_only=False)
        assert finish(other_queue, "the-job").status == "completed"

    def about_to_publish(ctx: Context) -> Any:
        if late:
            before = tree(root)
            with pytest.raises(LeaseLost):
                late.pop()()
            seen.extend([before, tree(root)])
        return begin(ctx)

    queue_with_files.unregister(type)
    payload_type = files.NewFile if type == CREATE_FILE else files.OldFile
    queue_with_files.register(type, stopped, payload_type=payload_type, prepare=files.with_whole_path)
    register(other_queue)
    monkeypatch.setattr(Context, "transaction", about_to_publish)
    more = {"content": "new", "overwrite": True} if type == CREATE_FILE else {"requireExists": True}
    queue_with_files.enqueue(type, {"path": "a", **more}, id="the-job")
    queue_with_files.drain(limit=1)
    assert len(seen[0]) == 2
    assert seen[0] == seen[1]
    assert get(queue_with_files, "the-job").attempts == 2
    assert tree(root) == ({"a": b"new"} if type == CREATE_FILE else {})


def test_job_can_not_be_lost_while_its_file_gets_its_name(
    queue_with_files: Queue, root: Path, monkeypatch: pytest.MonkeyPatch, recorder: Recorder
) -> None:
    """Who would take the job over waits for the database, which the publishing attempt holds."""
    rename, refused = os.rename, []

    def contested(*args: Any, **kwargs: Any) -> None:
        with closing(sqlite3.connect(path_of(queue_with_files), timeout=0)) as thief:
            try:
                thief.execute("UPDATE holdfast_jobs SET version = version + 1")
            except sqlite3.OperationalError as error:
                refused.append(str(error))
        rename(*args, **kwargs)

    monkeypatch.setattr(os, "rename", contested)
    (root / "a").write_text("old")
    assert create(queue_with_files, "a", "new", overwrite=True).status == "completed"
    assert (refused, tree(root)) == (["database is locked"], {"a": b"new"})
    assert recorder.all(OutcomeRefused) == []


@pytest.mark.parametrize("type", [CREATE_FILE, DELETE_FILE])
def test_attempt_whose_transaction_ran_out_of_time_changes_nothing(
    queue_with_files: Queue, root: Path, monkeypatch: pytest.MonkeyPatch, type: str
) -> None:
    (root / "a").write_text("old")
    queue_with_files.set_config("transaction_seconds", 0.05)
    enter = Transaction.__enter__

    def slow(transaction: Transaction) -> Any:
        connection = enter(transaction)
        wait_until(lambda: connection.expired_after is not None)
        return connection

    monkeypatch.setattr(Transaction, "__enter__", slow)
    payload = {"content": "x", "overwrite": True} if type == CREATE_FILE else {}
    job = run(queue_with_files, type, "a", **payload)
    assert (job.status, job.attempts) == ("failed", ATTEMPTS)
    assert "TransactionExpired" in (job.error or "")
    assert tree(root) == {"a": b"old"}


def test_job_that_is_cancelled_while_it_writes_is_completed_if_and_only_if_the_file_is_there(
    queue_with_files: Queue, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue_with_files.set_config("heartbeat_interval", 0.1)
    late = Late(queue_with_files, CREATE_FILE, files.create_file)
    fsync = os.fsync

    def cancel(file: int) -> None:
        fsync(file)
        monkeypatch.setattr(os, "fsync", fsync)
        queue_with_files.cancel("the-job")
        wait_until(lambda: late.contexts[0].stopping)

    monkeypatch.setattr(os, "fsync", cancel)
    queue_with_files.enqueue(CREATE_FILE, {"path": "a", "content": "new"}, id="the-job")
    status = finish(queue_with_files, "the-job").status
    assert status in ("cancelled", "completed")
    assert tree(root) == ({"a": b"new"} if status == "completed" else {})


@pytest.mark.parametrize("happened", [True, False])
def test_file_whose_commit_failed_is_found_by_the_next_attempt(
    queue_with_files: Queue, root: Path, monkeypatch: pytest.MonkeyPatch, happened: bool
) -> None:
    doubt_completion(monkeypatch, queue_with_files, happened=happened)
    job = create(queue_with_files, "a", "new")
    assert (job.status, job.attempts) == ("completed", 1 if happened else 2)
    assert job.result["changed"] is happened
    assert tree(root) == {"a": b"new"}


# A file job of one's own.


def test_handler_of_ones_own_publishes_a_file_and_children_in_one_step(
    queue_with_files: Queue, root: Path
) -> None:
    @queue_with_files.job
    def report(ctx: Context, number: int) -> dict[str, Any]:
        ctx.enqueue("next_step", {"number": number})
        return publish(ctx, "report.bin", bytes([number]), overwrite=True)

    job = finish(queue_with_files, report.enqueue(number=255).id)
    assert job.status == "completed", job.error
    assert job.result == {
        "path": str(root / "report.bin"),
        "bytes": 1,
        "sha256": hashlib.sha256(b"\xff").hexdigest(),
        "changed": True,
    }
    assert tree(root) == {"report.bin": b"\xff"}
    assert len(queue_with_files.children(job.id)) == 1


def test_child_of_a_job_whose_file_is_refused_does_not_exist(queue_with_files: Queue, root: Path) -> None:
    (root / "report.bin").write_bytes(b"another's")

    @queue_with_files.job
    def report(ctx: Context) -> dict[str, Any]:
        ctx.enqueue("next_step")
        return publish(ctx, "report.bin", b"mine", overwrite=False)

    job = finish(queue_with_files, report.enqueue().id)
    failed_at_once(job)
    assert queue_with_files.children(job.id) == []
    assert queue_with_files.count() == 1


# No byte outside the roots.


REFUSED, FAILED, INSIDE = "refused", "failed", "inside"

TRAVERSALS = [
    # Upwards, by name.
    ("../outside/new", FAILED),
    ("../outside/secret", FAILED),
    ("../../../../../../../../../../etc/holdfast-test", FAILED),
    ("inner/../../outside/new", FAILED),
    ("inner/../inner/../../outside/new", FAILED),
    ("./../outside/new", FAILED),
    (".//..//outside//new", FAILED),
    ("missing/../../outside/new", FAILED),
    ("file/../../outside/new", FAILED),
    ("to_folder/../new", INSIDE),
    ("inner/../new", INSIDE),
    ("{root}/../outside/new", FAILED),
    ("{root}/../root/new", INSIDE),
    ("{root}/./inner/.././new", INSIDE),
    ("../root2/new", FAILED),
    ("..", REFUSED),
    ("../", REFUSED),
    ("../outside/folder/..", REFUSED),
    ("../root", FAILED),
    # Absolute, elsewhere.
    ("{outside}/new", FAILED),
    ("{outside}/secret", FAILED),
    ("/{outside}/new", FAILED),
    ("//{outside}//new", FAILED),
    ("/{root}//new", INSIDE),
    ("{root}", FAILED),
    ("/holdfast-test", FAILED),
    ("/", REFUSED),
    ("/proc/self/root{outside}/new", FAILED),
    ("/proc/self/root{root}/new", FAILED),
    ("/proc/self/cwd/new", FAILED),
    ("/proc/self/cwd/../outside/new", FAILED),
    ("/proc/self/fd/0", FAILED),
    ("/dev/fd/1", FAILED),
    ("/dev/stdout", FAILED),
    ("/dev/null", FAILED),
    ("/dev/shm/holdfast-test", FAILED),
    # Links below the root.
    ("to_outside/new", FAILED),
    ("to_outside/secret", FAILED),
    ("to_folder/secret", FAILED),
    ("to_folder/deeper/new", FAILED),
    ("to_secret", FAILED),
    ("dangling", FAILED),
    ("dangling/new", FAILED),
    ("loop", FAILED),
    ("loop/new", FAILED),
    ("loop_a/new", FAILED),
    ("up/outside/new", FAILED),
    ("self/self/self/new", FAILED),
    ("to_all{outside}/new", FAILED),
    ("to_proc{outside}/new", FAILED),
    ("to_cwd/../outside/new", INSIDE),
    ("inner/up/up/outside/new", FAILED),
    ("{by_link}/new", FAILED),
    ("hard", INSIDE),
    # Names that only look like something else.
    ("..%2foutside%2fnew", INSIDE),
    ("%2e%2e/outside/new", INSIDE),
    ("..\\outside\\new", INSIDE),
    ("..\\/new", INSIDE),
    ("C:\\outside\\new", INSIDE),
    ("file:///etc/new", INSIDE),
    (".../new", INSIDE),
    ("..../outside/new", INSIDE),
    (".. /outside/new", INSIDE),
    (" ../outside/new", INSIDE),
    ("..\n/outside/new", INSIDE),
    ("new\n../../outside/new", INSIDE),
    ("\u2025/outside/new", INSIDE),
    ("\uff0e\uff0e\uff0foutside\uff0fnew", INSIDE),
    ("\u202e../outside/new\u202c", INSIDE),
    ("..\u200b/outside/new", INSIDE),
    ("new.", INSIDE),
    ("new..", INSIDE),
    ("$HOME/new", INSIDE),
    ("`id`;new", INSIDE),
    ("-rf", INSIDE),
    ("*", INSIDE),
    ("~/new", REFUSED),
    ("~root/new", REFUSED),
    ("new/", REFUSED),
    ("new/.", REFUSED),
    ("new/./", REFUSED),
    ("file/", REFUSED),
    ("to_folder/", REFUSED),
    ("", REFUSED),
    ("new\0/../../outside/new", REFUSED),
    ("../outside/" + "n" * (LONGEST_NAME + 1), REFUSED),
    ("a/" * 3000 + "../" * 3000 + "new", INSIDE),
    ("n" * LONGEST_NAME, INSIDE),
    ("../" * 1500 + "{outside}/new", FAILED),
    ("deep/" * 700 + "new", INSIDE),
]


class Outside(NamedTuple):
    """Folders around the root, and what they hold: nothing of it may ever change."""

    folder: Path
    by_link: Path
    root: Path

    def path(self, form: str) -> str:
        names = {"{outside}": str(self.folder), "{root}": str(self.root), "{by_link}": str(self.by_link)}
        for name, value in names.items():
            form = form.replace(name, value)
        return form

    def state(self) -> dict[str, object]:
        found: dict[str, object] = {}
        for path in [*self.root.parent.glob("*"), *self.folder.rglob("*")]:
            if path != self.root and not path.name.startswith("queue.db"):
                status = path.lstat()
                held = path.read_bytes() if path.is_file() else b""
                found[str(path)] = (status.st_ino, status.st_mode, status.st_mtime_ns, held)
        for path in (Path("/etc"), Path("/dev/shm"), Path("/")):
            found[str(path)] = sorted(name for name in os.listdir(path) if "holdfast-test" in name)
        return found


@pytest.fixture
def outside(root: Path, tmp_path: Path) -> Outside:
    """A root full of ways out, and what lies there."""
    folder = tmp_path / "outside"
    (folder / "folder").mkdir(parents=True)
    (folder / "secret").write_text("secret")
    (folder / "folder/secret").write_text("secret")
    (tmp_path / "root2").mkdir()
    (tmp_path / "by_link").symlink_to(root)
    (root / "inner").mkdir()
    (root / "file").write_text("file")
    os.link(folder / "secret", root / "hard")
    links = {
        "to_outside": "../outside",
        "to_folder": str(folder / "folder"),
        "to_secret": str(folder / "secret"),
        "dangling": str(folder / "new"),
        "loop": "loop",
        "loop_a": "loop_b",
        "loop_b": "loop_a",
        "up": "..",
        "inner/up": "..",
        "self": ".",
        "to_all": "/",
        "to_proc": "/proc/self/root",
        "to_cwd": "/proc/self/cwd",
    }
    for name, target in links.items():
        (root / name).symlink_to(target)
    return Outside(folder, tmp_path / "by_link", root)


def is_below(path: str, root: Path) -> bool:
    """Whether a plain file is there, below the root and through no link."""
    return os.path.isfile(path) and os.path.realpath(path) == path and path.startswith(f"{root}/")


@pytest.mark.parametrize(("form", "verdict"), TRAVERSALS, ids=lambda value: ascii(value)[:40])
def test_path_that_leads_out_is_refused_or_stays_inside(
    queue_with_files: Queue, root: Path, outside: Outside, form: str, verdict: str
) -> None:
    queue, path = queue_with_files, outside.path(form)
    before, around = tree(root), outside.state()
    if verdict == REFUSED:
        for type, payload in ((CREATE_FILE, {"content": "new"}), (DELETE_FILE, {})):
            with pytest.raises(InvalidPayload, match=r"^payload\.path: "):
                queue.enqueue(type, {"path": path, **payload})
        assert queue.count() == 0
    elif verdict == FAILED:
        failed_at_once(create(queue, path, "new", overwrite=True))
        failed_at_once(create(queue, path, "secret"))
        failed_at_once(delete(queue, path))
        failed_at_once(delete(queue, path, requireExists=True))
        assert tree(root) == before
    else:
        job = create(queue, path, "new", overwrite=True)
        assert job.status == "completed", job.error
        assert is_below(job.result["path"], root)
        assert Path(job.result["path"]).read_text() == "new"
        assert outside.state() == around
        assert delete(queue, path, requireExists=True).status == "completed"
        assert not os.path.lexists(job.result["path"])
    assert outside.state() == around


def test_there_are_sixty_forms_and_more() -> None:
    assert len({form for form, _ in TRAVERSALS}) == len(TRAVERSALS) >= 60


def test_path_that_was_stored_by_hand_leads_nowhere_else(
    queue_with_files: Queue, root: Path, outside: Outside
) -> None:
    """A worker does not rely on the check where a job was enqueued."""
    queue, around = queue_with_files, outside.state()
    for form, verdict in TRAVERSALS:
        path = outside.path(form)
        if "\0" in path:
            continue  # the database itself takes none
        for type, payload in ((CREATE_FILE, {"content": "new", "overwrite": True}), (DELETE_FILE, {})):
            job = queue.enqueue(type, {"path": "harmless", **payload})
            stored = json.dumps({"path": path, **payload})
            sql(queue, "UPDATE holdfast_jobs SET payload = ? WHERE id = ?", stored, job.id)
            ended = finish(queue, job.id)
            if verdict == INSIDE:
                assert ended.status == "completed", (form, ended.error)
                assert ended.result["path"].startswith(f"{root}/")
            else:
                assert (ended.status, ended.attempts) == ("failed", 1), (form, ended.attempts, ended.error)
            assert outside.state() == around, form


class Swapper:
    """Swaps a folder below the root for a link to a folder outside, and back, each in one step."""

    def __init__(self, folder: Path, target: Path) -> None:
        self._folder = folder
        self._other = folder.with_name("other")
        self._other.symlink_to(target)
        self._library = ctypes.CDLL(None, use_errno=True)
        self._over = threading.Event()
        self.swaps = 0

    def swap(self) -> None:
        here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
        names = (os.fsencode(self._folder), os.fsencode(self._other))
        if self._library.renameat2(here, names[0], here, names[1], exchange) != 0:
            raise OSError(ctypes.get_errno(), "renameat2")
        self.swaps += 1

    def run(self) -> None:
        while not self._over.is_set():
            self.swap()

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self.run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(PATIENCE)


def plant(folder: Path) -> None:
    """Files that jobs would replace and remove, if they got there."""
    folder.mkdir(exist_ok=True)
    for name in ("replaced", "removed", "required"):
        (folder / name).write_text("old")


def attack_through(queue: Queue, folder: Path) -> list[Job]:
    """Run one job of each kind through the folder."""
    return [
        create(queue, folder / "new", "x"),
        create(queue, folder / "replaced", "x", overwrite=True),
        create(queue, folder / "deeper/new", "x", overwrite=True),
        delete(queue, folder / "removed"),
        delete(queue, folder / "required", requireExists=True),
    ]


def test_thousand_swaps_of_a_folder_for_a_link_let_nothing_out(
    queue_with_files: Queue, root: Path, outside: Outside
) -> None:
    queue_with_files.set_config("max_attempts", 1)
    inside = root / "sub"
    plant(inside)
    plant(outside.folder / "folder")
    around = outside.state()
    ended: list[Job] = []
    with Swapper(inside, outside.folder / "folder") as swapper:
        for _ in range(500):
            ended += attack_through(queue_with_files, inside)
            assert outside.state() == around
            for name in ("sub", "other"):
                if not (root / name).is_symlink():
                    (root / name / "new").unlink(missing_ok=True)
            if swapper.swaps >= 1_000 and len(ended) >= 150:
                break
    assert swapper.swaps >= 1_000
    statuses = {job.status for job in ended}
    assert statuses == {"completed", "failed"}, "the jobs have met the folder and the link"
    assert outside.state() == around


SWAPPED_AT = ("open", "mkdir", "stat", "lstat", "readlink", "fsync", "fchmod", "link", "rename", "unlink")


class AtStep:
    """Does something once, right before the n-th call of the functions of `os` that reach files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
        self._action = action
        self.calls = 0
        self.at = 0
        for name in SWAPPED_AT:
            monkeypatch.setattr(os, name, self._counted(getattr(os, name)))

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            if self.at and threading.current_thread() is threading.main_thread():
                self.calls += 1
                if self.calls == self.at:
                    self.at = 0
                    self._action()
            return function(*args, **kwargs)

        return counted


@pytest.mark.parametrize(
    ("type", "path", "payload"),
    [
        (CREATE_FILE, "new", {"content": "x"}),
        (CREATE_FILE, "replaced", {"content": "x", "overwrite": True}),
        (CREATE_FILE, "deeper/new", {"content": "x"}),
        (DELETE_FILE, "removed", {}),
        (DELETE_FILE, "required", {"requireExists": True}),
    ],
)
def test_folder_that_becomes_a_link_at_any_step_lets_nothing_out(
    queue_with_files: Queue,
    root: Path,
    outside: Outside,
    monkeypatch: pytest.MonkeyPatch,
    type: str,
    path: str,
    payload: dict[str, Any],
) -> None:
    inside = root / "sub"
    plant(inside)
    plant(outside.folder / "folder")
    around = outside.state()
    swapper = Swapper(inside, outside.folder / "folder")
    step = AtStep(monkeypatch, swapper.swap)
    for number in range(1, 100):
        plant(inside)
        (inside / "new").unlink(missing_ok=True)
        job = queue_with_files.enqueue(type, {"path": str(inside / path), **payload})
        step.calls, step.at = 0, number
        finish(queue_with_files, job.id)
        passed, step.at = step.at != 0, 0
        assert outside.state() == around, f"step {number}"
        if passed:
            break
        swapper.swap()
    assert 6 < number < 60


def test_slow_disk_keeps_the_transaction_until_it_is_done(
    queue_with_files: Queue, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can take the job over while its file is being removed, however long that takes."""
    queue_with_files.set_config("transaction_seconds", 1)  # time to get there
    (root / "a").write_text("old")
    unlink = os.unlink

    def slow(name: Any, **options: Any) -> None:
        if name == "a":
            time.sleep(1.1)  # longer than transaction_seconds
        unlink(name, **options)

    monkeypatch.setattr(os, "unlink", slow)
    job = queue_with_files.enqueue(DELETE_FILE, {"path": "a"})
    queue_with_files.drain(limit=1)
    done = get(queue_with_files, job.id)
    assert (done.status, done.attempts, done.errors) == ("completed", 1, ())


def test_worker_whose_folder_is_gone_says_so_and_tries_again(
    queue_with_files: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can't tell which files it may touch, and so not whether one of them is gone."""
    monkeypatch.delenv(VARIABLE)
    job = queue_with_files.enqueue(DELETE_FILE, {"path": str(tmp_path / "a")})
    (tmp_path / "a").write_text("here")
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    queue_with_files.drain(limit=1)
    monkeypatch.chdir(tmp_path)
    left = get(queue_with_files, job.id)
    assert left.status == "scheduled"
    assert (left.error or "").startswith("HoldfastError: this worker's current folder no longer exists")


def test_result_that_is_no_dict_is_refused_before_anything_is_written(
    queue_with_files: Queue, root: Path
) -> None:
    def handler(payload: dict[str, Any], ctx: Context) -> Any:
        ctx.result = [1]
        return files.publish(ctx, str(root / "a"), b"new", overwrite=True)

    queue_with_files.register("mine", handler)
    job = queue_with_files.enqueue("mine", {}, max_attempts=1)
    queue_with_files.drain()
    assert "ctx.result must be a dict or None" in (get(queue_with_files, job.id).error or "")
    assert tree(root) == {}
