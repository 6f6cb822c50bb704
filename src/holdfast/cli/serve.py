"""queuectl serve: the HTTP API and workers under one supervisor."""

from __future__ import annotations

import os
import re
import socket
import sys
from importlib.util import find_spec
from typing import Any

import msgspec

from holdfast.cli.command import DONE, FAILED, Call, Parser, UsageError, command, say
from holdfast.cli.detach import PYTHON, clean_environment
from holdfast.cli.supervised import RECONCILE
from holdfast.cli.worker import (
    MOST_WORKERS,
    end_commands_of,
    no_reconcile_argument,
    refuse_stop_file,
    signals_to,
    worker_command,
)
from holdfast.config import stop_file
from holdfast.core.job import base_type, check_type
from holdfast.errors import ConfigError, HoldfastError
from holdfast.events import Events
from holdfast.jobs import FILE_TYPES
from holdfast.jobs.roots import VARIABLE as FILE_ROOTS
from holdfast.observe import log
from holdfast.web.auth import is_loopback, make_access
from holdfast.web.limits import BACKLOG
from holdfast.worker.seat import Seat
from holdfast.worker.supervisor import Supervisor

TOKEN, READ_TOKEN = "QUEUECTL_TOKEN", "QUEUECTL_READ_TOKEN"
"""The environment that tokens come from, and go by to the server: an argument could be seen by everybody."""


def _arguments(parser: Parser) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (127.0.0.1)")
    parser.add_argument(
        "--port", metavar="N", type=int, default=8000, help="the port; 0 takes a free one (8000)"
    )
    parser.add_argument(
        "--workers", metavar="N", type=int, default=1, help="worker processes beside the server (1; 0: none)"
    )
    parser.add_argument("--app", metavar="PKG.MODULE:QUEUE", help="load your handlers from there")
    parser.add_argument("--token", metavar="T", help=f"full-access token ({TOKEN})")
    parser.add_argument("--read-token", metavar="T", help=f"read-only token ({READ_TOKEN})")
    parser.add_argument(
        "--allow-type", metavar="T", action="append", help="take this built-in type over HTTP; repeat it"
    )
    parser.add_argument(
        "--allow-host", metavar="H", action="append", help="answer to this Host, too; repeat it (*: any)"
    )
    parser.add_argument(
        "--root-path", metavar="P", default="", help="the path at which a proxy shows us, and strips"
    )
    parser.add_argument(
        "--enqueue-rate",
        metavar="N",
        type=float,
        default=0.0,
        help="jobs a second that each token or address may enqueue (unlimited)",
    )
    no_reconcile_argument(parser)
    parser.add_argument("--log-format", choices=("text", "json"), help="(text on a terminal, JSON elsewhere)")


@command(
    "queuectl serve",
    "queuectl serve --app shop.jobs:queue --workers 4",
    "queuectl serve --host 0.0.0.0 --token T --allow-host queue.example.com",
    arguments=_arguments,
    prints_data=False,
    makes_queue=True,
)
def serve(call: Call) -> int:
    """Serve the HTTP API, and run worker processes beside it.

    Listens on this machine alone, unless a token protects it. The first Ctrl-C or SIGTERM accepts no more
    requests, finishes those that run, stops claiming and lets running jobs finish within shutdown_timeout;
    the second gives them back and exits at once.
    """
    arguments = call.arguments
    tokens = _tokens(call)
    server = _server_options(call, has_token=TOKEN in tokens)
    if arguments.workers:
        refuse_stop_file()
    listener = _listen(arguments.host, arguments.port)
    server |= {"descriptor": listener.fileno(), "address": _address(listener, arguments)}
    log.configure(server["log_format"])
    clean = clean_environment(arguments.database)
    environment = {name: value for name, value in clean.items() if name not in (TOKEN, READ_TOKEN)}
    # The current folder is likely to hold the application's code: what comes over HTTP must not change it.
    environment.setdefault(FILE_ROOTS, "")
    if arguments.workers and not environment[FILE_ROOTS]:
        _warn_of_missing_roots(server["allow_types"])
    supervisor = Supervisor(
        worker_command(_worker_options(server)),
        arguments.workers,
        events=Events(),
        environment=environment,
        server=Seat(
            [*PYTHON, "holdfast.cli.server_process", msgspec.json.encode(server).decode()],
            environment | tokens,
            descriptors=[listener.fileno()],
            is_worker=False,
            told_first={} if arguments.no_reconcile else {RECONCILE: "1"},
        ),
        stop_file=stop_file(),
        on_death=end_commands_of,
        on_stop=listener.close,  # or new clients would wait for nobody while jobs finish
    )
    with listener, signals_to(supervisor):
        return DONE if supervisor.run() else FAILED


def _tokens(call: Call) -> dict[str, str]:
    given = {TOKEN: call.arguments.token, READ_TOKEN: call.arguments.read_token}
    found = {name: os.environ.get(name) if value is None else value for name, value in given.items()}
    return {name: value for name, value in found.items() if value is not None}


def _server_options(call: Call, *, has_token: bool) -> dict[str, Any]:
    """What the server's process is told; wrong values are found here, before anything is started."""
    arguments = call.arguments
    _require_web_extra()
    if not 0 <= arguments.workers <= MOST_WORKERS:
        raise UsageError(
            f"queuectl serve: --workers must be from 0 to {MOST_WORKERS}, not {arguments.workers}"
        )
    if not 0 <= arguments.port <= 65_535:
        raise UsageError(f"queuectl serve: --port must be from 0 to 65535, not {arguments.port}")
    if not 0 <= arguments.enqueue_rate <= 1e9:
        raise UsageError(
            f"queuectl serve: --enqueue-rate must be a number from 0, not {arguments.enqueue_rate:g}"
        )
    if not is_loopback(arguments.host) and not has_token:
        raise ConfigError(
            f"{arguments.host} can be reached from other machines, so a token is needed",
            hint=f"set {TOKEN}, or say --token",
        )
    hosts = list(arguments.allow_host or ())
    if arguments.host not in ("0.0.0.0", "::", ""):
        hosts.append(f"[{arguments.host}]" if ":" in arguments.host else arguments.host)
    tokens = _tokens(call)
    make_access(tokens.get(TOKEN), tokens.get(READ_TOKEN), hosts, "token")
    return {
        "app": arguments.app,
        "allow_types": [check_type(type) for type in arguments.allow_type or ()],
        "allowed_hosts": hosts,
        "root_path": _root_path(arguments.root_path),
        "enqueue_rate": arguments.enqueue_rate,
        "needs_workers": arguments.workers > 0,
        "log_format": arguments.log_format or ("text" if sys.stdout.isatty() else "json"),
    }


def _warn_of_missing_roots(allowed: list[str]) -> None:
    types = sorted({base_type(type) for type in allowed} & FILE_TYPES)
    if types:
        say(
            f"--allow-type {', '.join(types)}: these jobs will fail unless {FILE_ROOTS} names the folders "
            "that they may change; name only folders that hold no code"
        )


def _require_web_extra() -> None:
    for name in ("fastapi", "uvicorn", "jinja2", "prometheus_client"):
        if find_spec(name) is None:
            raise HoldfastError(
                f"serve needs {name}, which is not installed", hint="pip install 'holdfast[web]'"
            )


def _root_path(path: str) -> str:
    path = path.rstrip("/")
    if re.fullmatch(r"(/[A-Za-z0-9._~-]+)*", path) is None:
        raise ConfigError(f"--root-path {path!r} is not a path such as /queue")
    return path


def _worker_options(server: dict[str, Any]) -> dict[str, Any]:
    own = {"types": None, "concurrency": None, "drain": False}
    return {name: server[name] for name in ("app", "log_format")} | own


def _listen(host: str, port: int) -> socket.socket:
    """The socket, opened here: a server that has to be replaced loses no client that waits."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:  # the latter: it can't even be a name
        reason = getattr(error, "strerror", None) or str(error)
        raise HoldfastError(f"can't listen on {host}:{port}: {reason}", hint="say --host or --port") from None


def _address(listener: socket.socket, arguments: Any) -> str:
    host = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
    return f"http://{host}:{listener.getsockname()[1]}"
