"""The web server's process: uvicorn on a socket that its supervisor opened, with limits on slow clients.

By itself, uvicorn waits forever for a request, or for a response to be read. Here, a connection that keeps
the server waiting is closed: if its request has not arrived or its response was not read within seconds, even
while closing; and, at the connection limit, one that sends requests faster than they are answered, or else
the one that has kept the server waiting longest. So no client can lock out the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from holdfast.events import Events, ServerStopped, ServerStopping
from holdfast.web.backend import Backend
from holdfast.web.limits import BACKLOG, SPARE_DESCRIPTORS, most_connections
from holdfast.web.responses import json_bytes
from holdfast.web.sending import ABORT, SECURITY_HEADERS, WRITE_SECONDS

HEADER_SECONDS = 10.0
"""How long a request may take to arrive, excluding its body."""

EVENTS_PATH = "/api/events"
_LAST_MESSAGE_SECONDS = 1.0
_KEEP_ALIVE_SECONDS = 30


class PatientProtocol(H11Protocol):
    """One connection. `since` is when it was made, or when its last request was answered."""

    since = 0.0
    _deadline: asyncio.TimerHandle | None = None
    _write_deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # An answer is written in two parts; the second must not wait until the first is acknowledged. asyncio
        # sees to it only where a socket was made with its protocol named.
        with contextlib.suppress(OSError):  # it is not TCP, or gone already
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Whatever the system does not take from us at once counts as unread; see pause_writing().
        transport.set_write_buffer_limits(high=0)
        self.app = partial(_call_with_abort, self.app, transport.abort)
        self.since = self.loop.time()
        self._deadline = self.loop.call_later(HEADER_SECONDS, self._give_up)
        if len(self.connections) > most_connections():
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._deadline, self._write_deadline):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    @property
    def keeps_us_waiting(self) -> bool:
        """Whether its next request, or the rest of one, is outstanding, or its response is still unread."""
        if self.transport.get_write_buffer_size():  # nothing is left of it in one that was let go
            return True
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY) and not self.transport.is_closing()

    def data_received(self, data: bytes) -> None:
        if self._deadline is None and self.conn.their_state is h11.IDLE:
            self._deadline = self.loop.call_later(HEADER_SECONDS, self._give_up)
        super().data_received(data)

    def handle_events(self) -> None:
        if self.flow.write_paused and self.conn.their_state is h11.IDLE:
            self.flow.pause_reading()  # the next request waits until this answer is read
            return
        super().handle_events()
        if self._deadline is not None and self.conn.their_state is not h11.IDLE:
            self._deadline.cancel()
            self._deadline = None

    def on_response_complete(self) -> None:
        self.since = self.loop.time()
        super().on_response_complete()

    def _give_up(self) -> None:
        self._deadline = None
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.transport.close()

    def _make_room(self) -> None:
        """Let one go that runs ahead: that has sent a request before the last one was answered, as hardly any
        client does. Or else the one that has kept us waiting for longest; if there is none, the one that has
        just come."""
        others = [c for c in self.connections if isinstance(c, PatientProtocol) and c is not self]
        found = [c for c in others if c.flow.read_paused] or [c for c in others if c.keeps_us_waiting]
        min(found, key=lambda c: c.since, default=self).transport.abort()

    @property
    def is_stream(self) -> bool:
        """Whether it is answered with live events, which never end by themselves."""
        return bool(self.cycle) and self.cycle.scope["path"].endswith(EVENTS_PATH)

    # Called when something could not be sent at once, and when all of it has been: between them whoever does
    # not read is waited for, and no longer. A transport that is closing would wait for ever.

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_deadline = self.loop.call_later(WRITE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.flow.resume_reading()
            self.handle_events()

    def send_400_response(self, msg: str) -> None:
        body = json_bytes({"error": {"code": "invalid_request", "message": msg}})
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
            (b"cache-control", b"no-store"),
            *SECURITY_HEADERS,
        ]
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            for event in (
                h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


async def _call_with_abort(app: Any, abort: Callable[[], None], scope: Any, receive: Any, send: Any) -> None:
    """Tell the application in each request's scope how to end its connection."""
    await app({**scope, ABORT: abort}, receive, send)


class Server(uvicorn.Server):
    """uvicorn, stopped by our signals: the first lets requests finish, the second does not."""

    def __init__(
        self, config: uvicorn.Config, backend: Backend, events: Events, on_started: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._on_started = on_started
        self._backend = backend
        self._events = events
        self.cut_short = 0

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()

        def stop(*_: object) -> None:
            loop.call_soon_threadsafe(self.stop)

        # Not by the loop, which would forget who listened before.
        before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def stop(self) -> None:
        """Shut down gracefully; the second call exits at once. Call it in the server's own loop."""
        self.force_exit = self.should_exit
        self.should_exit = True
        if self.force_exit:
            self._count_cut_short()
            for connection in list(self.server_state.connections):
                connection.transport.abort()  # newer Pythons wait for their end

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)
        if self.started:
            self._on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._backend.let_go()
        self._events.emit(ServerStopping(requests=len(self.server_state.tasks)))
        loop = asyncio.get_running_loop()
        unread = loop.call_later(_LAST_MESSAGE_SECONDS, self._drop_streams)
        late = loop.call_later(float(self.config.timeout_graceful_shutdown or 0), self._count_cut_short)
        try:
            await super().shutdown(sockets)
        finally:
            late.cancel()
            unread.cancel()
        self._events.emit(ServerStopped(cut_short=self.cut_short))

    def _drop_streams(self) -> None:
        """Close streams whose clients have not read that they were ended."""
        for connection in list(self.server_state.connections):
            if isinstance(connection, PatientProtocol) and connection.is_stream:
                connection.transport.abort()

    def _count_cut_short(self) -> None:
        """Count the requests that are still running at the deadline."""
        self.cut_short = len(self.server_state.tasks)


def make_server(
    app: FastAPI,
    *,
    root_path: str,
    events: Events,
    shutdown_seconds: float,
    on_started: Callable[[], None],
) -> Server:
    """A server for an application; `serve(sockets=[…])` runs it in the present event loop."""
    config = uvicorn.Config(
        app,
        http=PatientProtocol,
        ws="none",
        loop="asyncio",
        lifespan="on",
        root_path=root_path,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=max(1, round(shutdown_seconds)),
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        h11_max_incomplete_event_size=64 * 1024,
        # asyncio accepts as many at once, and again, before it looks at any of them: there must be room.
        backlog=SPARE_DESCRIPTORS // 8,
        # Whom a request was passed on for is the guard's business; the environment has no say in it.
        proxy_headers=False,
    )
    return Server(config, app.state.backend, events, on_started)


def serve(server: Server, listener: socket.socket) -> bool:
    """Serve until told to stop, then finish the requests that run, within the time.

    Returns whether all of them could finish.
    """
    asyncio.run(server.serve(sockets=[listener]))
    return not server.cut_short
