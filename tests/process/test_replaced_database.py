"""The database file is removed under a server and its worker: both notice, and go on in the new one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.surfaces.desk import Desk


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path / "home")
    yield desk
    desk.close()


def test_server_and_worker_are_replaced_with_the_database(desk: Desk) -> None:
    running = desk.start("serve --port 0 --workers 1 --log-format json")
    running.wait_for("server.started")
    running.wait_for("worker.started")
    for name in desk.home.glob("queue.db*"):
        name.unlink()
    for kind in ("server", "worker"):
        died = running.wait_for(f"{kind}.died")
        assert f"{desk.home}/queue.db was re" in died["how"], died
        assert "while this process had it open" in died["how"], died
        running.wait_for(f"{kind}.started", 2)
    id = desk.enqueue("true")
    desk.wait(id, "completed")
    assert running.stop() == 0
