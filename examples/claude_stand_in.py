#!/usr/bin/env python3
"""Stands in for Claude Code, to try claude_extraction jobs offline and for nothing. It is no model.

It answers `claude -p --output-format json` in the shape of the real one, always with the same kind of facts:
the first word of a requirement is the actor, the rest is the action. QUEUECTL_CLAUDE names it in place of
`claude`. To see what goes wrong with the real one, write words into the file that CLAUDE_STAND_IN names, a
line each; a run takes the first of them off: `limit` answers with a rate limit, `hang` never answers.
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
    """What this run is to do, taken off the file; nothing to simply answer."""
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
    """What the real one prints, as far as it matters. A failed run calls itself a success, as there."""
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
