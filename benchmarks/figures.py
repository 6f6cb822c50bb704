"""What a benchmark returns: figures, some with a share of the floor, some with an expectation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Expectation:
    """A bound that a figure, or its share, was held against."""

    words: str
    met: bool


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured number. `share` is its part of the floor that `of` names."""

    name: str
    value: float
    unit: str
    share: float | None = None
    of: str = ""
    expectation: Expectation | None = None


def at_least(value: float, bound: float) -> Expectation:
    return Expectation(f"{value:.2f}, expected at least {bound:g}", value >= bound)


def at_most(value: float, bound: float, unit: str, why: str = "") -> Expectation:
    reason = f" ({why})" if why else ""
    return Expectation(f"{value:.2f} {unit}, expected at most {bound:.2f} {unit}{reason}", value <= bound)


def table(figures: Iterable[Figure]) -> Iterator[str]:
    """A line for each figure."""
    for figure in figures:
        share = "" if figure.share is None else f"{figure.share:6.2f} of {figure.of}"
        yield f"  {figure.name:<42} {_number(figure.value):>10} {figure.unit:<9} {share}".rstrip()


def expectations(figures: Iterable[Figure]) -> Iterator[str]:
    """A line for each expectation."""
    for figure in figures:
        if figure.expectation is not None:
            verdict = "met    " if figure.expectation.met else "NOT met"
            yield f"  {verdict}  {figure.name}: {figure.expectation.words}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"
