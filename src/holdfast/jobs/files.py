"""The types `create_file` and `delete_file`: files below the roots, changed atomically and once.

The new content is written to a temporary file in the same folder and synced to disk. It is then renamed
inside the transaction that completes the job. So a reader sees either the whole old content or the whole new
content, and an attempt that has lost its job can't publish: it can't enter the transaction.

Both types are safe to run again after a crash. A file that already has the right content is success, and so
is a file that is already gone.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any

from msgspec import Meta, Struct

from holdfast.context import Context
from holdfast.core.job import Job
from holdfast.errors import Fail, HoldfastError, InvalidPayload, LeaseLost, Retry
from holdfast.jobs.roots import (
    FileRefused,
    MissingFolder,
    NoFile,
    OwnFile,
    open_file,
    open_folder,
    real_path,
    refuse_unless_file,
    whole_path,
)
from holdfast.text import shown

_PERMANENT = {
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENAMETOOLONG,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ELOOP,
    errno.EINVAL,
}
"""Errors that a retry would not fix. A full disk and the like are retried."""

_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS}
"""The errors with which file systems refuse hard links."""

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_RWX = stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO


class NewFile(Struct, rename="camel", forbid_unknown_fields=True):
    """The payload of create_file. A string is written as text, any other value as JSON."""

    path: str
    content: Annotated[
        str | int | float | bool | list[Any] | dict[str, Any] | None,
        Meta(description='a string (with quotes in a form) or any other JSON value; "" is an empty file'),
    ]
    overwrite: bool = False


class OldFile(Struct, rename="camel", forbid_unknown_fields=True):
    """The payload of delete_file."""

    path: str
    require_exists: bool = False


def create_file(payload: NewFile, ctx: Context) -> dict[str, Any]:
    """Create a file with this content; with overwrite, replace an existing one."""
    return publish(ctx, payload.path, _content(payload.content), overwrite=payload.overwrite)


def delete_file(payload: OldFile, ctx: Context) -> dict[str, Any]:
    """Delete a file.

    With requireExists, a missing file is an error, unless an earlier attempt has seen it: that one may have
    deleted it and died before it could record that. It leaves a mark beside the file before it deletes it.
    """
    path = payload.path
    with explained(path):
        try:
            with open_folder(path) as (folder, name):
                return _delete(ctx, folder, name, payload)
        except MissingFolder:
            if payload.require_exists:
                raise Fail(f"{path!r} does not exist") from None
            return {"path": whole_path(path), "changed": False}


def publish(ctx: Context, path: str, data: bytes, *, overwrite: bool) -> dict[str, Any]:
    """Give a file this content and complete the job with it, in one step that happens or does not.

    What a file job of one's own needs: `return publish(ctx, path, data, overwrite=True)`. What `ctx.result`
    holds before is kept in the result.
    """
    job = ctx.job
    again = job.version > 1
    result = ctx.result or {}
    if not isinstance(result, dict):
        raise HoldfastError(f"ctx.result must be a dict or None before publish(), not {shown(result)}")
    with explained(path), open_folder(path, make=True, again=again) as (folder, name):
        _remove_marks(job, folder, "new")
        before = refuse_unless_file(folder, name, path)
        with _temporary(job, folder, data, before) as temporary, ctx.transaction():
            ctx.hold()
            changed = _give_name(folder, temporary, name, path, data, overwrite=overwrite)
            ctx.result = {
                **result,
                "path": whole_path(path),
                "bytes": len(data),
                "sha256": hashlib.sha256(data).hexdigest(),
                "changed": changed,
            }
    return dict(ctx.result)


@contextmanager
def explained(path: str) -> Iterator[None]:
    """Fail the job permanently if a retry would not help."""
    try:
        yield
    except (InvalidPayload, FileRefused) as error:
        raise Fail(str(error)) from None
    except OSError as error:
        if error.errno in _PERMANENT:
            raise Fail(f"{path!r}: {error.strerror}") from error
        raise


def with_whole_path(payload: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The payload as it is stored: a relative path is resolved in the process that enqueues it."""
    return {**payload, "path": whole_path(payload["path"])}, {}


def subject(job: Job) -> str:
    """The file that a job is about, by the path in its result or payload."""
    named = [job.payload.get("path"), job.payload.get("targetPath")]
    if isinstance(job.result, dict):
        named.insert(0, job.result.get("path"))
    path = next((path for path in named if isinstance(path, str)), None)
    if path is None:
        raise HoldfastError("neither the job's result nor its payload contains a path")
    return file_subject(path)


def file_subject(path: str) -> str:
    """The reconciliation subject of a job that changes this file, the same for every way to name the file."""
    return f"file {real_path(path)}"


def not_as_written(job: Job) -> str | None:
    """How the file of a completed create_file or claude_extraction differs from what was written."""
    result = _kept_result(job)
    path = result["path"]
    try:
        found = refuse_unless_file(None, path, path)
        if found is None:
            return "the file is missing"
        with open(open_file(None, path, found, path), "rb", buffering=0) as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
    except (FileNotFoundError, NotADirectoryError):
        return "the file is missing"
    except NoFile:
        return "something other than a file is in its place"
    except OwnFile as error:
        raise HoldfastError(str(error)) from None
    return None if digest == result["sha256"] else "the file's content has changed"


def not_gone(job: Job) -> str | None:
    """Whether the file of a completed delete_file is there."""
    try:
        os.lstat(_kept_result(job)["path"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    return "the file exists"


def _kept_result(job: Job) -> dict[str, Any]:
    if isinstance(job.result, dict) and "path" in job.result:
        return job.result
    raise HoldfastError("the job's result was not stored")


def _delete(ctx: Context, folder: int, name: str, payload: OldFile) -> dict[str, Any]:
    job, path = ctx.job, payload.path
    there = refuse_unless_file(folder, name, path) is not None
    if payload.require_exists:
        if there:
            _mark(job, folder)
        elif not any(_is_there(folder, mark) for mark in _marks(job, "seen")):
            raise Fail(f"{path!r} does not exist")
    try:
        with ctx.transaction():
            ctx.hold()
            _remove(folder, name)
            os.fsync(folder)
            ctx.result = {"path": whole_path(path), "changed": there}
    except LeaseLost:
        _remove(folder, _marks(job, "seen")[-1])  # the attempts that count have marks of their own
        raise
    if payload.require_exists:
        _remove_marks(job, folder, "seen")
    return dict(ctx.result)


def _mark(job: Job, folder: int) -> None:
    with suppress(FileExistsError):  # whatever it is, it marks; to open it might hang
        os.close(os.open(_marks(job, "seen")[-1], _NEW, 0o666, dir_fd=folder))
    os.fsync(folder)


def _content(value: Any) -> bytes:
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    return text.encode()


@contextmanager
def _temporary(job: Job, folder: int, data: bytes, before: os.stat_result | None) -> Iterator[str]:
    """A temporary file in the folder with this content, synced to disk; removed afterwards."""
    name = _marks(job, "new")[-1]
    file = os.open(name, _NEW, 0o666, dir_fd=folder)
    try:
        with open(file, "wb") as stream:
            if before is not None:  # the owner is another: no setuid, no setgid
                os.fchmod(stream.fileno(), before.st_mode & _RWX)
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        yield name
    finally:
        _remove(folder, name)


def _give_name(folder: int, temporary: str, name: str, path: str, data: bytes, *, overwrite: bool) -> bool:
    """Publish the temporary file. Returns False if the file was there with its content already."""
    there = refuse_unless_file(folder, name, path)
    changed = there is None or not _holds(folder, name, there, path, data)
    if not changed:
        os.unlink(temporary, dir_fd=folder)
    elif overwrite:
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    elif there is not None:
        raise Fail(f"{path!r} already exists with different content, and overwrite is not set")
    else:
        _rename_to_new(folder, temporary, name, path)
    os.fsync(folder)
    return changed


def _rename_to_new(folder: int, temporary: str, name: str, path: str) -> None:
    """Rename to a name that isn't taken. A plain rename would replace a file that has just appeared."""
    try:
        os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        os.unlink(temporary, dir_fd=folder)
    except FileExistsError:
        raise Retry(f"{path!r} was created by another process at the same moment", delay=0) from None
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)


def _holds(folder: int, name: str, found: os.stat_result, path: str, data: bytes) -> bool:
    with open(open_file(folder, name, found, path), "rb") as stream:
        return os.fstat(stream.fileno()).st_size == len(data) and stream.read() == data


def _remove(folder: int, name: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def _is_there(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _remove_marks(job: Job, folder: int, kind: str) -> None:
    for mark in _marks(job, kind):
        _remove(folder, mark)


def _marks(job: Job, kind: str) -> list[str]:
    """The names of what this job's attempts leave next to a file; unique across jobs and queues."""
    origin = hashlib.sha256(job.origin.encode()).hexdigest()[:20]
    return [f".holdfast-{origin}-{kind}-{version}" for version in range(1, job.version + 1)]
