"""How long a job waits before its next attempt."""

from __future__ import annotations

from msgspec import Struct


class Backoff(Struct, frozen=True):
    """The back-off settings of one type."""

    strategy: str = "exponential"
    base: float = 2.0
    factor: float = 1.0
    maximum: float = 21_600.0
    jitter: float = 0.2

    def delay(self, attempts: int, chance: float) -> float:
        """Seconds to wait after the given number of attempts.

        `chance`, from 0 to 1, picks the point within ± jitter. The maximum holds after jitter too.
        """
        if self.strategy == "fixed":
            seconds = self.factor
        elif self.strategy == "linear":
            seconds = self.factor * attempts
        else:
            seconds = self.factor and self.factor * _power(self.base, attempts)  # never 0 × infinity
        seconds = min(seconds, self.maximum)
        return min(seconds * (1 + self.jitter * (2 * chance - 1)), self.maximum)


def _power(base: float, exponent: int) -> float:
    try:
        return float(base) ** exponent
    except OverflowError:
        return float("inf")
