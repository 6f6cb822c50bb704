"""HTTP by hand, for requests that no client library would send."""

from __future__ import annotations

import json
import socket
from http.client import HTTPResponse
from typing import Any

from msgspec import Struct


class Answer(Struct, frozen=True):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> Any:
        """The code of an error."""
        return json.loads(self.body)["error"]["code"]


def connect(address: str, timeout: float = 10.0) -> socket.socket:
    host, port = address.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout)


def read_answer(connection: socket.socket, method: str = "GET") -> Answer:
    with HTTPResponse(connection, method=method) as response:
        response.begin()
        headers = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, headers, response.read())


def exchange(address: str, data: bytes) -> Answer:
    """Send bytes over a connection of their own, and read one answer."""
    with connect(address) as connection:
        connection.sendall(data)
        return read_answer(connection)
