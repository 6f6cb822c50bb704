"""A handler's module whose import takes its time: until the file that the environment names is there."""

from __future__ import annotations

import os
import time
from pathlib import Path

from holdfast import Context, worker

_GATE = os.environ.get("HOLDFAST_TEST_IMPORT_GATE")

if _GATE is not None and worker.in_handler_process:
    Path(_GATE + ".importing").touch()
    while not os.path.exists(_GATE):
        time.sleep(0.005)


def quick() -> str:
    return "done"


def check_for_ever(ctx: Context) -> None:
    while True:
        ctx.check()
        time.sleep(0.005)
