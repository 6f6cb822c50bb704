"""What a benchmark returns: figures, comparisons of several queues, and the expectations they are held to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

OURS = "Holdfast"


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


@dataclass(frozen=True)
class Entry:
    """What was measured of one queue, round by round."""

    who: str
    values: list[float]

    @property
    def value(self) -> float:
        return median(self.values)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One measure of several queues, in turns. Ours comes first."""

    name: str
    section: str
    """The part of the page, and the plot, where it is shown."""
    unit: str
    entries: list[Entry]
    less_is_better: bool = False
    expectations: list[Expectation] = field(default_factory=list)

    def ratio(self, who: str) -> float | None:
        """How many times the figure of another ours is: the median of the rounds' ratios, or for one that did
        not take part in every round, the ratio of the medians."""
        ours, other = self.entries[0], self.entry(who)
        if ours.who != OURS or other is None or not all(other.values):
            return None
        if len(ours.values) != len(other.values):
            return ours.value / other.value
        return median(our / their for our, their in zip(ours.values, other.values, strict=True))

    def entry(self, who: str) -> Entry | None:
        return next((entry for entry in self.entries if entry.who == who), None)

    def expect_ratio(self, who: str, bound: float) -> None:
        """Hold ours against another's: at least so many times as much, or at most where less is better."""
        ratio = self.ratio(who)
        if ratio is not None:
            self._expect(ratio, bound, f"{ratio:.2f} × {who}", f"{bound:g} ×")

    def expect(self, value: float, bound: float) -> None:
        self._expect(value, bound, f"{number(value)} {self.unit}", f"{number(bound)} {self.unit}")

    def _expect(self, value: float, bound: float, words: str, bound_words: str) -> None:
        met = value <= bound if self.less_is_better else value >= bound
        limit = "at most" if self.less_is_better else "at least"
        self.expectations.append(Expectation(f"{words}, expected {limit} {bound_words}", met))


Result = Figure | Comparison


def at_least(value: float, bound: float) -> Expectation:
    return Expectation(f"{value:.2f}, expected at least {bound:g}", value >= bound)


def at_most(value: float, bound: float, unit: str, why: str = "") -> Expectation:
    reason = f" ({why})" if why else ""
    return Expectation(f"{value:.2f} {unit}, expected at most {bound:.2f} {unit}{reason}", value <= bound)


def table(results: Sequence[Result]) -> Iterator[str]:
    """A line for each figure; for each comparison a title and a line for each queue."""
    for result in results:
        if isinstance(result, Comparison):
            yield from _comparison(result)
        else:
            share = "" if result.share is None else f"{result.share:6.2f} of {result.of}"
            yield f"  {result.name:<42} {number(result.value):>10} {result.unit:<9} {share}".rstrip()


def _comparison(comparison: Comparison) -> Iterator[str]:
    yield f"  {comparison.name} ({comparison.unit}{', less is better' if comparison.less_is_better else ''})"
    for entry in comparison.entries:
        beside = spread(entry)
        ratio = None if entry is comparison.entries[0] else comparison.ratio(entry.who)
        share = "" if ratio is None else f"Holdfast: {times(ratio)}"
        yield f"    {entry.who:<28} {number(entry.value):>10}  {beside:<19} {share}".rstrip()


def expectations(results: Iterable[Result]) -> Iterator[tuple[str, Expectation]]:
    """Each expectation, with the name of what it is about."""
    for result in results:
        if isinstance(result, Comparison):
            yield from ((result.name, expectation) for expectation in result.expectations)
        elif result.expectation is not None:
            yield result.name, result.expectation


def number(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def times(ratio: float) -> str:
    return f"{ratio:,.0f}×" if ratio >= 10 else f"{ratio:.2f}×"


def spread(entry: Entry) -> str:
    """The lowest and the highest round, where there were several."""
    if len(entry.values) < 2:
        return ""
    return f"{number(min(entry.values))} to {number(max(entry.values))}"
