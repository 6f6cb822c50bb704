"""The command queuectl. Each subcommand is imported when it is called."""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False  # importing it takes longer than all that comes before the first try
if TYPE_CHECKING:
    from typing import Any, NoReturn

INTERRUPTED = 130


_interrupted = False


def was_interrupted() -> bool:
    """Whether Ctrl-C was pressed. In the middle of an import, Python may turn it into another error."""
    return _interrupted


def main() -> NoReturn:
    """Run queuectl and exit with its code."""
    try:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _on_interrupt)
        sys.unraisablehook = _on_unraisable
        open_closed_streams()
        from holdfast.cli.main import run

        os._exit(run(sys.argv[1:]))
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)
    except Exception:
        if was_interrupted():
            os._exit(INTERRUPTED)
        raise


def _on_interrupt(*_: object) -> None:
    """The first Ctrl-C lets the running command clean up; the second one exits at once."""
    global _interrupted
    if _interrupted:
        os._exit(INTERRUPTED)
    _interrupted = True
    raise KeyboardInterrupt


def _on_unraisable(error: Any) -> None:
    """A Ctrl-C in a place where Python can raise nothing, such as a finalizer, would be swallowed."""
    if issubclass(error.exc_type, KeyboardInterrupt):
        os._exit(INTERRUPTED)
    sys.__unraisablehook__(error)


def open_closed_streams() -> None:
    """Replace standard streams that our caller has closed, so that no other file gets their numbers."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, mode))  # noqa: SIM115 -- for as long as the process lives
