"""Tests of the built-in job types use the fixtures of the worker's."""

from tests.worker.conftest import gate, other_queue, recorder, short_heartbeat  # noqa: F401 (fixtures)
