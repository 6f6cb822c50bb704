"""A proxy in front of PostgreSQL that cuts a connection at a chosen message of its client."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import Enum
from pathlib import Path
from urllib.parse import quote, urlencode

from psycopg.conninfo import conninfo_to_dict

STARTUP = b"startup"
ASKING = (b"Q", b"S", STARTUP)
"""Messages that the server answers with ReadyForQuery."""


class Cut(Enum):
    """Where to cut: before the server gets the message, while it works on it, after it has answered."""

    BEFORE = "before"
    DURING = "during"
    AFTER = "after"


Plan = Callable[[int, bytes, bytes], Cut | None]
"""Given the number of a message, its kind and its content: whether to cut there."""


def cut_at(number: int, cut: Cut) -> Plan:
    return lambda n, kind, content: cut if n == number else None


def pass_all(number: int, kind: bytes, content: bytes) -> None:
    return None


class Proxy:
    """Listens on a socket in a folder of its own. Messages of all connections are counted together."""

    def __init__(self, folder: Path, server: str) -> None:
        self._folder = folder
        self._server = conninfo_to_dict(server)
        self._lock = threading.Lock()
        self._plan: Plan = pass_all
        self._links: list[_Link] = []
        self.messages: list[bytes] = []
        self.cuts = 0
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / ".s.PGSQL.5432"))
        self._listener.listen()
        self._thread = threading.Thread(target=self._accept, name="proxy", daemon=True)
        self._thread.start()

    def url(self, **options: str) -> str:
        """The address of the server through this proxy."""
        known = self._server
        password = f":{quote(str(known['password']))}" if known.get("password") else ""
        query = urlencode({"host": str(self._folder), **options}, quote_via=quote)
        return f"postgresql://{known.get('user', 'postgres')}{password}@/{known['dbname']}?{query}"

    def follow(self, plan: Plan) -> None:
        """From now on. The next message is number 0."""
        with self._lock:
            self._plan = plan
            self.messages = []
            self.cuts = 0

    def decide(self, kind: bytes, content: bytes) -> Cut | None:
        with self._lock:
            cut = self._plan(len(self.messages), kind, content)
            self.cuts += cut is not None  # before the message can be seen
            self.messages.append(kind)
            return cut

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(60)
        self._listener.close()
        for link in self._links:
            link.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._links.append(_Link(self, client, self._connect()))

    def _connect(self) -> socket.socket:
        host, port = str(self._server["host"]), int(self._server.get("port") or 5432)
        if host.startswith("/"):
            server = socket.socket(socket.AF_UNIX)
            server.connect(f"{host}/.s.PGSQL.{port}")
            return server
        return socket.create_connection((host, port))


class _Link:
    """One connection of a client, and ours for it; a thread for each direction."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client, self._server = client, server
        self._unanswered = 0
        self._ending = False
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=run, name="proxy", daemon=True) for run in (self._ask, self._answer)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._shut()
        for thread in self._threads:
            thread.join(60)
        self._client.close()
        self._server.close()

    def _shut(self) -> None:
        for end in (self._client, self._server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _ask(self) -> None:
        with suppress(OSError):
            for kind, message in _messages(self._client, begins=True):
                cut = self._proxy.decide(kind, message)
                if cut is Cut.BEFORE:
                    break
                with self._lock:
                    self._unanswered += kind in ASKING
                    self._ending = self._ending or cut is Cut.AFTER
                self._server.sendall(message)
                if cut is Cut.DURING:
                    break
        self._shut()

    def _answer(self) -> None:
        with suppress(OSError):
            for kind, message in _messages(self._server):
                with self._lock:
                    self._unanswered -= kind == b"Z"
                    ending, done = self._ending, self._unanswered == 0
                if not ending:
                    self._client.sendall(message)
                elif done:
                    break
        self._shut()


def _messages(source: socket.socket, *, begins: bool = False) -> Iterator[tuple[bytes, bytes]]:
    """The messages that come in, each with its kind. The first one of a client has none."""
    file = source.makefile("rb")
    while True:
        kind = b"" if begins else file.read(1)
        length = file.read(4)
        if len(length) < 4:
            return
        content = file.read(struct.unpack("!i", length)[0] - 4)
        yield (STARTUP if begins else kind), kind + length + content
        begins = False
