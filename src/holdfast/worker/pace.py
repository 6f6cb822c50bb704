"""How fast jobs finish in a worker process, and so how many of them to hold ready."""

from __future__ import annotations

from holdfast.core.job import base_type

HORIZON = 0.05
"""How many seconds of work to hold ready."""

MAX_HELD = 1000

MOST_KNOWN = 1000
"""At least so many types are remembered, and at most twice as many: those that were used last."""


class Pace:
    """How fast jobs of one kind finish here."""

    __slots__ = ("finished", "mean", "rate")

    def __init__(self) -> None:
        self.mean: float | None = None
        self.rate = 0.0
        self.finished = 0

    def note(self, seconds: float) -> None:
        self.finished += 1
        self.mean = _mean(self.mean, seconds)

    def measure(self, elapsed: float) -> None:
        rate = self.finished / elapsed
        self.rate = max(rate, (self.rate + rate) / 2)
        self.finished = 0

    def ahead(self, slots: int) -> int:
        """Jobs that will start within the horizon, beyond those that fill the slots now."""
        if self.mean is None or self.mean > HORIZON:
            return 0
        return min(MAX_HELD, int(HORIZON * min(self.rate, slots / max(self.mean, 1e-6))))


class Paces:
    """How fast jobs finish under each cap, and which types are slow.

    The quick types of a cap share its pace. Of thousands of types each may be seen once: those that are not
    known share the pace of the others that were not, so that they are held ready only while these are quick.
    """

    def __init__(self) -> None:
        self._by_cap: dict[str, Pace] = {}
        self._of_unknown = Pace()
        # How long a job of each base type takes, in two generations: the older one is dropped as a whole.
        self._means: dict[str, float] = {}
        self._older: dict[str, float] = {}

    def note(self, cap: str, type: str, seconds: float) -> None:
        """A job has finished."""
        base = base_type(type)
        mean = self._means.get(base)
        if mean is None:
            mean = self._remember(base)
            if mean is None:
                self._of_unknown.note(seconds)
        mean = self._means[base] = _mean(mean, seconds)
        if mean <= HORIZON:
            pace = self._by_cap.get(cap)
            if pace is None:
                pace = self._by_cap[cap] = Pace()
            pace.note(seconds)

    def measure(self, elapsed: float) -> None:
        """Close the interval over which rates are measured."""
        self._of_unknown.measure(elapsed)
        for cap, pace in list(self._by_cap.items()):
            pace.measure(elapsed)
            if pace.rate * HORIZON < 1:
                del self._by_cap[cap]

    def ahead(self, cap: str, type: str, slots: int) -> int:
        """How many jobs of a type's cap may be held ready, if more of this type are among them."""
        pace = self._by_cap.get(cap)
        kind = self.kind(type)
        if pace is None or kind == "slow":
            return 0
        ahead = pace.ahead(slots)
        return ahead if kind == "quick" else min(ahead, self._of_unknown.ahead(slots))

    def ahead_in_all(self, slots: int) -> int:
        """How many jobs may be held ready."""
        return min(MAX_HELD, sum(pace.ahead(slots) for pace in self._by_cap.values()))

    def kind(self, type: str) -> str:
        """Types of one kind and cap may be held ready alike."""
        base = base_type(type)
        mean = self._means.get(base, self._older.get(base))
        if mean is None:
            return "unknown"
        return "slow" if mean > HORIZON else "quick"

    def _remember(self, base: str) -> float | None:
        """Make place for one more type. Returns what was known of it before."""
        if len(self._means) >= MOST_KNOWN:
            self._older, self._means = self._means, {}
        return self._older.get(base)


def _mean(mean: float | None, seconds: float) -> float:
    """A slower job counts at once, a faster one by and by: holding too little costs less than too much."""
    if mean is None:
        return seconds
    weight = 0.5 if seconds > mean else 0.1
    return mean + weight * (seconds - mean)
