"""queuectl, the control command."""

from holdfast.cli.main import main

__all__ = ["main"]
