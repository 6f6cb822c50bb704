"""queuectl serve: the dashboard, the HTTP API and workers under one supervisor."""

from __future__ import annotations

import os
import re
import socket
from argparse import Namespace
from importlib.util import find_spec

from holdfast.cli import supervise, worker_process
from holdfast.cli.command import Call, Command, UsageError, argument, say
from holdfast.cli.server_process import READ_TOKEN, TOKEN, Options
from holdfast.config import stop_file
from holdfast.core.job import base_type, check_type
from holdfast.errors import ConfigError, HoldfastError
from holdfast.events import Events
from holdfast.jobs import FILE_TYPES
from holdfast.jobs.roots import VARIABLE as FILE_ROOTS
from holdfast.supervisor.process import Process
from holdfast.supervisor.supervisor import Supervisor
from holdfast.web.auth import is_loopback, make_access
from holdfast.web.limits import BACKLOG


@Command(
    "queuectl serve",
    "queuectl serve --app shop.jobs:queue --workers 4",
    "queuectl serve --host 0.0.0.0 --token T --allow-host queue.example.com",
    arguments=(
        argument("--host HOST", "address to listen on (default: 127.0.0.1)", default="127.0.0.1"),
        argument("--port N", "port to listen on; 0 picks a free one (default: 8000)", type=int, default=8000),
        argument(
            "--workers N",
            "worker processes to run alongside the server; 0 for none (default: 1)",
            type=int,
            default=1,
        ),
        supervise.handlers_argument,
        argument("--token T", f"full-access token (default: {TOKEN})"),
        argument("--read-token T", f"read-only token (default: {READ_TOKEN})"),
        argument("--allow-type T", "accept this built-in job type over HTTP; repeatable", action="append"),
        argument(
            "--allow-host H", "also accept this Host header; * accepts any; repeatable", action="append"
        ),
        argument("--root-path P", "URL prefix that the proxy strips", default=""),
        argument(
            "--enqueue-rate N",
            "jobs per second that each token or address may enqueue (default: unlimited)",
            type=float,
            default=0.0,
        ),
        supervise.no_reconcile_argument,
        *supervise.log_arguments,
    ),
    prints_data=False,
    makes_queue=True,
)
def serve(call: Call) -> int:
    """Run the dashboard, the HTTP API and worker processes.

    By default, the server can be reached from this machine only; any other --host requires a token. The first
    Ctrl-C or SIGTERM shuts down gracefully: it accepts no more requests, claims no more jobs, and lets
    running ones finish within shutdown_timeout. A second one releases running jobs and exits immediately.
    """
    arguments = call.arguments
    tokens, hosts = _tokens(arguments), _hosts(arguments)
    _check(call, tokens, hosts)
    types = [check_type(type) for type in arguments.allow_type or ()]
    root_path = _root_path(arguments.root_path)
    if arguments.workers:
        supervise.refuse_stop_file()
    listener = _listen(arguments.host, arguments.port)
    options = Options(
        app=arguments.app,
        allow_types=types,
        allowed_hosts=hosts,
        root_path=root_path,
        enqueue_rate=arguments.enqueue_rate,
        needs_workers=arguments.workers > 0,
        log=supervise.log_options(call),
        descriptor=listener.fileno(),
        address=f"http://{_in_brackets(arguments.host)}:{listener.getsockname()[1]}",
    )
    options.log.configure()
    clean = supervise.clean_environment(arguments.database)
    environment = {name: value for name, value in clean.items() if name not in (TOKEN, READ_TOKEN)}
    # The current folder is likely to hold the application's code: what comes over HTTP must not change it.
    environment.setdefault(FILE_ROOTS, "")
    if arguments.workers and not environment[FILE_ROOTS]:
        _warn_of_missing_roots(types)
    worker = worker_process.Options(app=options.app, log=options.log)
    supervisor = Supervisor(
        supervise.process_command("worker_process", worker),
        arguments.workers,
        events=Events(),
        environment=environment,
        server=Process(
            supervise.process_command("server_process", options),
            environment | tokens,
            descriptors=[listener.fileno()],
            is_worker=False,
            reconciles=not arguments.no_reconcile,
        ),
        stop_file=stop_file(),
        on_stop=listener.close,  # or new clients would wait for nobody while jobs finish
    )
    with listener:
        return supervise.run(supervisor)


def _tokens(arguments: Namespace) -> dict[str, str]:
    given = {TOKEN: arguments.token, READ_TOKEN: arguments.read_token}
    found = {name: os.environ.get(name) if value is None else value for name, value in given.items()}
    return {name: value for name, value in found.items() if value is not None}


def _hosts(arguments: Namespace) -> list[str]:
    own = [] if arguments.host in ("0.0.0.0", "::", "") else [_in_brackets(arguments.host)]
    return [*(arguments.allow_host or ()), *own]


def _in_brackets(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _check(call: Call, tokens: dict[str, str], hosts: list[str]) -> None:
    """Reject invalid values before anything is started."""
    arguments = call.arguments
    _require_web_extra()
    call.require_between("workers", 0, supervise.MOST_WORKERS)
    call.require_between("port", 0, 65_535)
    if not 0 <= arguments.enqueue_rate <= 1e9:
        raise UsageError(f"--enqueue-rate must be between 0 and 1e9, not {arguments.enqueue_rate:g}")
    if not is_loopback(arguments.host) and TOKEN not in tokens:
        raise ConfigError(
            f"{arguments.host} can be reached from other machines and requires a token",
            hint=f"set {TOKEN} or use --token",
        )
    make_access(tokens.get(TOKEN), tokens.get(READ_TOKEN), hosts, "token")


def _warn_of_missing_roots(allowed: list[str]) -> None:
    types = sorted({base_type(type) for type in allowed} & FILE_TYPES)
    if types:
        say(
            f"--allow-type {', '.join(types)}: these jobs will fail unless {FILE_ROOTS} lists the folders "
            "that they may change; don't list folders that contain code"
        )


def _require_web_extra() -> None:
    for name in ("fastapi", "uvicorn", "jinja2", "prometheus_client"):
        if find_spec(name) is None:
            raise HoldfastError(
                f"serve requires {name}, which is not installed", hint="pip install 'holdfast-queue[web]'"
            )


def _root_path(path: str) -> str:
    path = path.rstrip("/")
    if re.fullmatch(r"(/[A-Za-z0-9._~-]+)*", path) is None:
        raise ConfigError(f"--root-path must be a path such as /queue, not {path!r}")
    return path


def _listen(host: str, port: int) -> socket.socket:
    """Open the socket in the supervisor, so that waiting clients survive when the server is replaced."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:  # the latter: it can't even be a name
        reason = getattr(error, "strerror", None) or str(error)
        raise HoldfastError(
            f"can't listen on {host}:{port}: {reason}", hint="choose another --host or --port"
        ) from None
