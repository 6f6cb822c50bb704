"""Making untrusted text and values safe for a message: printable, short, on one line."""

from __future__ import annotations


def one_line(text: str) -> str:
    """The text with unprintable characters escaped, including line breaks."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def shown(value: object) -> str:
    """An untrusted value as it appears in a message: short, whatever it is."""
    try:
        text = repr(value)
    except Exception:  # such as an integer of thousands of digits
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}…"
