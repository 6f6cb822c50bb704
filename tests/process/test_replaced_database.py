"""The database file is removed under a server and its worker: both notice, and go on in the new one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.surfaces.command_line import CommandLine


@pytest.fixture
def ctl(tmp_path: Path) -> Iterator[CommandLine]:
    ctl = CommandLine(tmp_path / "home")
    yield ctl
    ctl.close()


def test_server_and_worker_are_replaced_with_the_database(ctl: CommandLine) -> None:
    running = ctl.start("serve --port 0 --workers 1 --log-format json")
    running.wait_for("server.started")
    running.wait_for("worker.started")
    for name in ctl.home.glob("queue.db*"):
        name.unlink()
    for kind in ("server", "worker"):
        died = running.wait_for(f"{kind}.died")
        assert f"{ctl.home}/queue.db was re" in died["how"], died
        assert "while this process had it open" in died["how"], died
        running.wait_for(f"{kind}.started", 2)
    id = ctl.enqueue("true")
    ctl.wait(id, "completed")
    assert running.stop() == 0
