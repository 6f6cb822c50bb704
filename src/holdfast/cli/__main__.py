"""`python -m holdfast.cli` is queuectl."""

from holdfast.cli import main

main()
