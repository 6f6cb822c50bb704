#!/usr/bin/env python3
"""Behaves like `claude -p --output-format json`, its failures included, as a test's script tells it.

The environment variable STAND_IN names a folder. `script.json` in it is a list with what each run does, the
last entry for all that follow; every run leaves what it was given there, in `run-1.json` and so on. It is
started as a program of its own and imports nothing of the tests.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any, NoReturn

VALUES = {
    "--output-format": ("text", "json", "stream-json"),
    "--permission-mode": ("acceptEdits", "auto", "bypassPermissions", "default", "dontAsk", "plan"),
    "--tools": None,
    "--model": None,
    "--max-budget-usd": None,
    "--max-turns": None,
}
SWITCHES = ("-p", "--print", "--strict-mcp-config")


def main() -> None:
    given = parse(sys.argv[1:])
    prompt = sys.stdin.buffer.read()
    if not prompt.strip():
        refuse(
            "Error: Input must be provided either through stdin or as a prompt argument when using --print"
        )
    folder = os.environ["STAND_IN"]
    number = 1 + sum(name.startswith("run-") for name in os.listdir(folder))
    with open(os.path.join(folder, "script.json"), encoding="utf-8") as file:
        script = json.load(file)
    step = script[min(number, len(script)) - 1]
    children = [leave_child(own_session=own) for own in step.get("children", [])]
    left = {
        "flags": given,
        "prompt": prompt.decode("utf-8", "surrogateescape"),
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "files": os.listdir(),
        "pids": [os.getpid(), *children],
        "leads": os.getsid(0) == os.getpgrp() == os.getpid(),
    }
    part = os.path.join(folder, f".{number}.part")
    with open(part, "w", encoding="utf-8") as file:
        json.dump(left, file)
    os.rename(part, os.path.join(folder, f"run-{number}.json"))
    play(step)


def parse(words: list[str]) -> dict[str, str | bool]:
    """The flags, refused as the real one refuses them."""
    given: dict[str, str | bool] = {}
    rest = iter(words)
    for word in rest:
        if word in SWITCHES:
            given[word] = True
        elif word in VALUES:
            value = next(rest, None)
            choices = VALUES[word]
            if value is None:
                refuse(f"error: option '{word} <value>' argument missing")
            if choices and value not in choices:
                refuse(f"error: option '{word} <value>' argument '{value}' is invalid.")
            given[word] = value
        else:
            refuse(f"error: unknown option '{word}'")
    if not given.get("-p") or given.get("--output-format") != "json":
        refuse("Error: the stand-in speaks only -p --output-format json")
    return given


def refuse(message: str) -> NoReturn:
    sys.exit(message)


def leave_child(*, own_session: bool) -> int:
    import subprocess  # a third of the time of a run that leaves none

    return subprocess.Popen(["sleep", "600"], start_new_session=own_session).pid


def play(step: dict[str, Any]) -> None:
    """Print and end as the step says."""
    if step.get("deaf"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    write(sys.stderr.buffer, step.get("stderr", ""))
    write(sys.stdout.buffer, step.get("before", ""))
    for _ in range(step.get("megabytes", 0)):
        sys.stdout.buffer.write(b"x" * 1_000_000)
    if "raw" in step:
        write(sys.stdout.buffer, step["raw"])
    elif "answer" in step:
        write(sys.stdout.buffer, json.dumps(envelope(**step["answer"])) + "\n")
    write(sys.stdout.buffer, step.get("after", ""))
    sys.stdout.buffer.flush()
    if step.get("hang"):
        open(os.path.join(os.environ["STAND_IN"], "hangs"), "w").close()
        while True:
            signal.pause()
    if "signal" in step:
        os.kill(os.getpid(), step["signal"])
    sys.stdout.flush()
    os._exit(step.get("exit", 0))


def envelope(**said: Any) -> dict[str, Any]:
    """What a run that went well prints, with what is said otherwise; what is said to be null is left out."""
    whole = {
        "type": "result",
        "subtype": "success",
        "is_error": False,
        "duration_ms": 1234,
        "duration_api_ms": 1200,
        "num_turns": 1,
        "result": "an answer",
        "stop_reason": "end_turn",
        "session_id": "3536e76d-21cd-4b08-82c5-99fab516c2c3",
        "total_cost_usd": 0.0125,
        "usage": {"input_tokens": 10, "output_tokens": 5, "server_tool_use": {"web_search_requests": 0}},
        "permission_denials": [],
        **said,
    }
    return {name: value for name, value in whole.items() if value is not None}


def write(stream: Any, text: str) -> None:
    """Characters from U+DC80 to U+DCFF stand for bytes that are not UTF-8."""
    stream.write(text.encode("utf-8", "surrogateescape"))
    stream.flush()


if __name__ == "__main__":
    main()
