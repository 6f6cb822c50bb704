"""Benchmarks: what Holdfast costs beside bare SQLite on the same disk. Run `python -m benchmarks`."""
