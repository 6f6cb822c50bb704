"""`python -m holdfast.cli` is queuectl."""

from holdfast.cli import main

if __name__ == "__main__":
    main()
