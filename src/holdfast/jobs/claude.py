"""The type `claude_extraction`: sends a prompt to Claude Code and writes the answer to a file.

The prompt is fixed when the job is enqueued: what is stored is what runs, verified by its hash. While such a
job is unfinished, enqueueing the same prompt for the same requirement returns that job.

Claude Code runs like a shell job's command, in a process group that is ended as a whole. It has no tools
unless some are allowed, and runs in an empty folder, because it would apply the settings of any other. It may
run again after a crash, which costs money but does no harm: the file is written once, with the job's
completion.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any

from msgspec import Meta, Struct

from holdfast.config import home_folder, make_private_folder
from holdfast.context import Context
from holdfast.errors import Fail, InvalidPayload
from holdfast.jobs.claude_answer import Run, checked_bytes, failure_of, read_answer, tail_of
from holdfast.jobs.errors import CommandNotStarted, ExtractionFailed
from holdfast.jobs.files import explained, publish
from holdfast.jobs.roots import open_folder, refuse_unless_file, whole_path

MAX_OUTPUT = 16 * 1024 * 1024
"""How many bytes of Claude Code's output are kept. The answer comes last."""

_Text = Annotated[str, Meta(pattern=r"\S")]


class Extraction(Struct, rename="camel", forbid_unknown_fields=True):
    """The payload of claude_extraction. `promptHash` is the SHA-256 of the prompt, in lower-case hex."""

    prompt: _Text
    target_path: str
    requirement_id: Annotated[str, Meta(pattern=r"\S", max_length=440)]
    prompt_hash: str | None = None


def freeze(payload: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The payload as it is stored, with hash and whole path, and the key by which it is recognised."""
    digest = _digest(payload["prompt"])
    if payload.get("promptHash") not in (None, digest):
        raise InvalidPayload("payload.promptHash", f"is not the SHA-256 of the prompt, which is {digest}")
    requirement = payload["requirementId"]
    if not requirement.isprintable():
        raise InvalidPayload("payload.requirementId", "must contain only printable characters")
    path = whole_path(payload["targetPath"], "targetPath")
    return {**payload, "targetPath": path, "promptHash": digest}, {"key": f"{requirement}:{digest}"}


def extract(payload: Extraction, ctx: Context) -> dict[str, Any]:
    """Run the prompt with Claude Code, validate the answer and write it to targetPath."""
    digest = _digest(payload.prompt)
    if payload.prompt_hash not in (None, digest):
        raise Fail(f"the prompt has changed since it was enqueued: its SHA-256 is now {digest}")
    _refuse_target(payload.target_path)
    run = _run(payload.prompt, ctx)
    answer = run.answer
    # None of them is enough: a failed run may call itself a success, and another may exit with 0.
    if answer is None or run.exit_code != 0 or answer.is_failure():
        raise failure_of(run, ctx.attempt)
    try:
        data = checked_bytes(answer.result or "", payload.target_path)
    except ValueError as problem:
        ctx.detail(problem=str(problem))
        raise ExtractionFailed(str(problem)) from None
    ctx.result = {"promptHash": digest, **answer.run_details()}
    return publish(ctx, payload.target_path, data, overwrite=True)


def _refuse_target(path: str) -> None:
    """Raise Fail for a path that can't be written, before the answer costs anything."""
    with explained(path), suppress(OSError), open_folder(path) as (folder, name):
        refuse_unless_file(folder, name, path)


def _digest(prompt: str) -> str:
    return hashlib.sha256(prompt.encode()).hexdigest()


# The run.


def _run(prompt: str, ctx: Context) -> Run:
    import shlex

    from holdfast.jobs.command import run_in_group

    # Nothing of the queue's own is passed on: a token or a database's password is none of Claude's business.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("QUEUECTL_")}
    output = _Output()
    with _written(prompt) as prompt_file:
        quoted = shlex.quote(prompt_file)
        command = f"exec <{quoted} || exit 125\nrm -f {quoted}\nexec {shlex.join(_words())}"
        ran = run_in_group(ctx, command, cwd=_folder(), environment=environment, write=output.write)
    text = output.text()
    answer, rest = read_answer(text)
    ctx.detail(exitCode=ran.exit_code, tail=tail_of(text), **(answer.evidence() if answer else {}))
    if ran.was_stopped:
        ctx.check()
    return Run(ran.exit_code, answer, rest, MAX_OUTPUT if output.was_cut else None)


def _words() -> list[str]:
    """The command line, from the environment of the worker."""
    import shlex
    import shutil

    try:
        said = shlex.split(os.environ.get("QUEUECTL_CLAUDE", "")) or ["claude"]
    except ValueError as error:
        raise CommandNotStarted(f"QUEUECTL_CLAUDE: {error}") from None
    program = shutil.which(said[0])
    if program is None:
        raise CommandNotStarted(
            f"program {said[0]!r} not found; set QUEUECTL_CLAUDE to the path of Claude Code"
        )
    words = [os.path.abspath(program), *said[1:], "-p", "--output-format", "json"]
    words += ["--permission-mode", os.environ.get("QUEUECTL_CLAUDE_PERMISSION_MODE") or "dontAsk"]
    # Both are needed: without the second the tools of configured MCP servers are left.
    words += ["--tools", os.environ.get("QUEUECTL_CLAUDE_TOOLS", ""), "--strict-mcp-config"]
    for flag, variable in (("--model", "MODEL"), ("--max-budget-usd", "BUDGET_USD")):
        if value := os.environ.get(f"QUEUECTL_CLAUDE_{variable}"):
            words += [flag, value]
    return words


def _folder() -> str:
    """Where it runs: an empty folder, unless one is named. It runs hooks that a folder's settings name."""
    if named := os.environ.get("QUEUECTL_CLAUDE_FOLDER"):
        return named
    folder = os.path.join(home_folder(), "claude")
    make_private_folder(folder)
    return os.path.abspath(folder)


@contextmanager
def _written(prompt: str) -> Iterator[str]:
    """A file with the prompt, for our eyes only. The command removes it as soon as it has opened it."""
    import tempfile

    folder = os.path.join(home_folder(), "prompts")
    make_private_folder(folder)
    descriptor, path = tempfile.mkstemp(dir=folder)
    try:
        with open(descriptor, "wb") as file:
            file.write(prompt.encode())
        yield os.path.abspath(path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(path)


class _Output:
    """The end of the output, in constant memory."""

    def __init__(self) -> None:
        self._data = bytearray()
        self.was_cut = False

    def write(self, data: bytes) -> None:
        self._data += data
        if len(self._data) > 2 * MAX_OUTPUT:
            self._cut()

    def text(self) -> str:
        if len(self._data) > MAX_OUTPUT:
            self._cut()
        return self._data.decode("utf-8", "surrogateescape")

    def _cut(self) -> None:
        del self._data[:-MAX_OUTPUT]
        self.was_cut = True
