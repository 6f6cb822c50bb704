"""The queue's API inside a FastAPI application: mounted at /queue, behind the application's own login.

In production, run it with `uvicorn --factory mounted_api:make_app --timeout-graceful-shutdown 30`. Here,
main() serves it for a moment and acts as the client.
"""

from __future__ import annotations

import asyncio
import json
import socket
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request as Ask
from urllib.request import urlopen

import uvicorn
from fastapi import FastAPI, Request, Response

from holdfast import Queue
from holdfast.web import create_app

TIMEOUT = 30


def send_receipt(order: int, to: str) -> str:
    return f"receipt for order {order} sent to {to}"


def make_app(database: str = "sqlite:///shop.db") -> FastAPI:
    queue = Queue(database)
    receipts = queue.job(send_receipt)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        """Run a worker in the background of the server; `queuectl worker start` can run more of them."""
        worker = queue.worker(concurrency=4)
        await asyncio.to_thread(worker.start)
        yield
        await asyncio.to_thread(worker.stop)
        queue.close()

    app = FastAPI(lifespan=lifespan)

    @app.middleware("http")
    async def authenticate(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        """Stands in for the application's own login. Middleware covers mounted apps; dependencies do not."""
        if request.headers.get("x-user") != "ada":
            return Response("authentication required", 401)
        return await call_next(request)

    @app.post("/orders/{order}")
    async def take_order(order: int) -> dict[str, str]:
        """An endpoint of the application. The job is durable when it responds."""
        job = await receipts.enqueue_async(order=order, to="ada@example.com")
        return {"receipt": job.id}

    # auth="outer": the application has already authenticated the client. Without it, and without a token,
    # only clients on this machine would be served.
    app.mount("/queue", create_app(queue, auth="outer"))
    return app


def play_the_client(address: str) -> None:
    try:
        ask(address, "GET", "/queue/api/tasks", user="eve")
    except HTTPError as error:
        with error:
            print(f"eve gets {error.code}: {error.read().decode()}")

    receipt = ask(address, "POST", "/orders/7")["receipt"]
    deadline = time.monotonic() + TIMEOUT
    while (task := ask(address, "GET", f"/queue/api/tasks/{receipt}"))["completedAt"] is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the receipt is still {task['status']}")
        time.sleep(0.05)
    print(f"{task['type']} is {task['status']}: {task['result']}")
    print(f"types: {[entry['type'] for entry in ask(address, 'GET', '/queue/api/types')]}")
    print(f"the queue is {ask(address, 'GET', '/queue/readyz')['status']}")


def ask(address: str, method: str, path: str, user: str = "ada") -> Any:
    with urlopen(Ask(address + path, method=method, headers={"X-User": user}), timeout=TIMEOUT) as answer:
        return json.load(answer)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as listener:
        app = make_app(f"sqlite:///{folder}/shop.db")
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            play_the_client(f"http://127.0.0.1:{listener.getsockname()[1]}")
        finally:
            server.should_exit = True
            thread.join()


if __name__ == "__main__":
    main()
