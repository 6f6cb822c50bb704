"""The token bucket behind rate limits."""

from __future__ import annotations

from msgspec import Struct


class Bucket(Struct, frozen=True):
    """Tokens left at an instant (microseconds). Starts in any t seconds ≤ rate × t + max(1, rate)."""

    tokens: float
    at: int

    def refill(self, rate: float, now: int) -> Bucket:
        """The bucket at `now`. A clock that stepped back refills nothing, and counts from there."""
        elapsed = max(0, now - self.at) / 1e6
        return Bucket(min(self.tokens + elapsed * rate, capacity(rate)), now)

    def take(self, count: int) -> Bucket:
        return Bucket(self.tokens - count, self.at)

    def available(self) -> int:
        # 1e-9: a sum of fractions that ought to be a whole token is one.
        return max(0, int(self.tokens + 1e-9))

    def seconds_until_next(self, rate: float) -> float:
        return max(0.0, (1 - self.tokens) / rate)


def capacity(rate: float) -> float:
    return max(1.0, rate)


def full(rate: float, now: int) -> Bucket:
    return Bucket(capacity(rate), now)
