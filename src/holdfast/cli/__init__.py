"""queuectl, the control command. Each command is imported when it is called."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

INTERRUPTED = 130


def main() -> NoReturn:
    """Run queuectl and exit with its code."""
    try:
        from holdfast.cli.main import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        code = INTERRUPTED
    # Nothing is left to be done, and a late Ctrl-C must not interrupt the interpreter's own end.
    os._exit(code)
