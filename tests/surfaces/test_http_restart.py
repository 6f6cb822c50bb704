"""What a server does over time: it is started again, and orders hold while others work."""

from __future__ import annotations

import threading
from typing import Any

import httpx
import pytest

from holdfast import Queue
from holdfast.store.open import store_of
from holdfast.web import create_app
from tests.surfaces.live import client, live

pytestmark = pytest.mark.slow


def test_an_application_serves_again_after_its_server_has_stopped(queue: Queue) -> None:
    app = create_app(queue)
    for count in (1, 2):
        with live(app) as address, client(address) as api:
            assert api.post("/api/tasks", json={"type": "mail"}).status_code == 201
            assert api.get("/api/tasks").json()["total"] == count
            with api.stream("GET", "/api/events") as stream:
                assert next(stream.iter_lines()) == "retry: 1000"


def test_a_bulk_order_takes_those_it_counted_and_no_others(
    queue: Queue, api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = [queue.enqueue("mail", {}).id for _ in range(300)]
    for id in [queue.enqueue("mail", {}).id for _ in range(300)]:
        queue.cancel(id)
    first = threading.Event()
    delete_job = store_of(queue).delete_job

    def delete(job_id: str) -> None:
        if not first.is_set():
            first.set()
            for id in older:  # come to fit while the order is carried out
                store_of(queue).cancel_job(id)
        delete_job(job_id)

    monkeypatch.setattr(store_of(queue), "delete_job", delete)
    order: dict[str, Any] = {"action": "delete", "filter": {"status": "cancelled"}, "expectedCount": 300}
    answer = api.post("/api/tasks/bulk", json=order).json()
    assert (answer["matched"], answer["done"], answer["refused"]) == (300, 300, 0)
    assert queue.count(status="cancelled") == 300
    assert queue.get(older[0]) is not None
