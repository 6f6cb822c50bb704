"""How attempts of the built-in types fail. The message contains what a reader needs."""

from __future__ import annotations

from holdfast.errors import AttemptFailed


class CommandNotStarted(AttemptFailed):
    """A command could not be started."""

    def __init__(self, problem: str, *, permanent: bool = False) -> None:
        super().__init__(f"the command could not be started: {problem}", permanent=permanent)
        self.problem = problem


class CommandFailed(AttemptFailed):
    """A shell command ended with an exit code other than 0, or by a signal."""

    def __init__(self, exit_code: int, last_line: str = "") -> None:
        super().__init__(f"{how_it_ended(exit_code)}: {last_line}" if last_line else how_it_ended(exit_code))
        self.exit_code = exit_code
        self.last_line = last_line


class ExtractionFailed(AttemptFailed):
    """Claude Code gave no usable answer; another attempt may."""


def how_it_ended(exit_code: int) -> str:
    return f"killed by signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
