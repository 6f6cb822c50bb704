#!/usr/bin/env python3
"""A stand-in for Claude Code, to try claude_extraction jobs offline and for free. It is not a model.

It answers like `claude -p --output-format json`, always with the same kind of facts: the first word of a
requirement is the actor, the rest is the action. To use it, set QUEUECTL_CLAUDE to its path. To simulate
failures, set CLAUDE_STAND_IN to a file with one word per line. Each run removes the first word and acts on
it: `limit` responds with a rate limit error, `hang` never responds.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import uuid
from pathlib import Path
from typing import Any


def main() -> None:
    if "-p" not in sys.argv or "json" not in sys.argv:
        print(f"{sys.argv[0]}: {__doc__}")
        return
    prompt = sys.stdin.read()
    word = next_word()
    if word == "hang":
        while True:
            signal.pause()
    if word == "limit":
        answer(
            "API Error: 429 rate_limit_error: This request would exceed your rate limit. Retry after 1 s", 429
        )
        sys.exit(1)
    answer(json.dumps(facts_in(prompt), indent=2))


def next_word() -> str:
    """What this run should do, removed from the file; empty to answer normally."""
    name = os.environ.get("CLAUDE_STAND_IN")
    if not name or not os.path.exists(name):
        return ""
    word, *others = [*Path(name).read_text().split(), ""]
    Path(name).write_text("\n".join(others))
    return word


def facts_in(prompt: str) -> dict[str, str | None]:
    said = re.split(r"Requirement [A-Z]+-[0-9]+:\n", prompt)[-1].strip()
    actor, _, action = said.partition(" ")
    measure = re.search(r"within .*?(?=[.,;]|$)", said)
    return {"actor": actor, "action": action, "measure": measure and measure[0]}


def answer(text: str, error: int | None = None) -> None:
    """Print what Claude Code prints, as far as it matters. There too, a failed run calls itself a success."""
    whole: dict[str, Any] = {
        "type": "result",
        "subtype": "success",
        "is_error": error is not None,
        "api_error_status": error,
        "num_turns": 1,
        "result": text,
        "session_id": str(uuid.uuid4()),
        "total_cost_usd": 0.0,
    }
    print(json.dumps(whole))


if __name__ == "__main__":
    main()
