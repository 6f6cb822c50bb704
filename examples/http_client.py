"""A client of the HTTP API, using only the standard library: enqueue safely, follow a job, see why it failed.

It would look the same in any other language. main() starts a server with the handlers from demo.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

FINISHED = ("completed", "failed", "cancelled")
TIMEOUT = 30.0


class Refused(Exception):
    """The server refused the request. `code` gives the reason to programs, the message to people."""

    def __init__(self, status: int, code: str, message: str, retry_after: float | None) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status = status
        self.code = code
        self.retry_after = retry_after


class Client:
    """The calls that most programs need."""

    def __init__(self, address: str, token: str | None = None) -> None:
        self._address = address
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """Send one request and return its JSON."""
        data = None if body is None else json.dumps(body).encode()
        given = {name.replace("_", "-"): value for name, value in headers.items()} | self._headers
        if data is not None:
            given["Content-Type"] = "application/json"
        request = Request(self._address + path, data, given, method=method)
        try:
            with urlopen(request, timeout=TIMEOUT) as answer:
                return json.load(answer)
        except HTTPError as error:
            with error:
                raise _refused(error) from None

    def enqueue(self, type: str, payload: dict[str, Any], *, key: str, tries: int = 5) -> str:
        """Enqueue a job and return its id. Retries until the server responds; the key prevents duplicates."""
        for attempt in range(1, tries + 1):
            pause = 0.1 * 2**attempt
            try:
                task = {"type": type, "payload": payload}
                return str(self.call("POST", "/api/tasks", task, Idempotency_Key=key)["id"])
            except Refused as refused:
                if refused.status not in (429, 503) or attempt == tries:
                    raise
                pause = refused.retry_after or pause
            except URLError:  # the server was not reached, or its response was lost
                if attempt == tries:
                    raise
            time.sleep(pause)
        raise AssertionError("tries must be 1 or more")

    def follow(self, job_id: str) -> Iterator[dict[str, Any]]:
        """Yield the job whenever it has changed, until it has finished."""
        request = Request(f"{self._address}/api/events?id={job_id}", headers=self._headers)
        with urlopen(request, timeout=TIMEOUT) as stream:  # the server sends something at least every 15 s
            event = ""
            for line in stream:
                name, _, value = line.decode().rstrip("\n").partition(": ")
                if name == "event":
                    event = value
                elif name == "data" and event == "tasks":
                    for task in json.loads(value)["tasks"]:
                        yield task
                        if task["status"] in FINISHED:
                            return


def _refused(error: HTTPError) -> Refused:
    problem = json.load(error)["error"]
    after = error.headers.get("Retry-After")
    return Refused(error.code, problem["code"], problem["message"], None if after is None else float(after))


def main() -> None:
    with server() as address:
        client = Client(address)

        first = client.enqueue("greet", {"name": "Ada"}, key="greet:ada")
        again = client.enqueue("greet", {"name": "Ada"}, key="greet:ada")
        print(f"sent twice, stored once: {first == again}")

        try:
            client.enqueue("greet", {"nome": "Ada"}, key="greet:typo")
        except Refused as refused:
            print(f"refused: {refused}")

        delivery = client.enqueue("deliver", {"address": "Atlantis"}, key="deliver:7")
        for task in client.follow(delivery):
            print(f"deliver is {task['status']}")
        for reason in client.call("GET", f"/api/tasks/{delivery}/why")["reasons"]:
            print(f"why? {reason['text']}")

        *_, greeting = client.follow(first)
        print(f"greet is {greeting['status']}: {client.call('GET', f'/api/tasks/{first}')['result']}")


@contextmanager
def server() -> Iterator[str]:
    """Run `queuectl serve` on a free port with its own queue, and yield its address."""
    with tempfile.TemporaryDirectory() as home:
        words = ["serve", "--app", "demo:queue", "--port", "0", "--log-format", "json"]
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.cli", *words, "--database", f"sqlite:///{home}/queue.db"],
            cwd=Path(__file__).parent,
            env={**os.environ, "QUEUECTL_HOME": home, "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            started = (event for line in process.stdout if (event := json.loads(line)).get("address"))
            yield next(started)["address"]
        finally:
            process.terminate()
            process.communicate(timeout=TIMEOUT)


if __name__ == "__main__":
    main()
