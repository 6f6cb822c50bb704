"""queuectl pause, resume and rate-limit: the flow of work over all workers."""

from __future__ import annotations

from holdfast.cli.command import DONE, Call, Parser, command, type_argument
from holdfast.cli.output import print_json, print_line


@command("queuectl pause", "queuectl pause --type send_email", arguments=type_argument, makes_queue=True)
def pause(call: Call) -> int:
    """Let no job start, or none of a type, in any process; running jobs finish."""
    return _set_paused(call, True)


@command("queuectl resume", "queuectl resume --type send_email", arguments=type_argument, makes_queue=True)
def resume(call: Call) -> int:
    """Undo pause with the same --type."""
    return _set_paused(call, False)


def _set_paused(call: Call, paused: bool) -> int:
    type = call.arguments.type
    (call.queue.pause if paused else call.queue.resume)(type)
    if call.wants_json:
        print_json({"paused": paused} | ({"type": type} if type else {}))
    else:
        print_line(f"{type or 'the whole queue'} is {'paused' if paused else 'no longer paused'}")
    return DONE


def _rate_arguments(parser: Parser) -> None:
    parser.add_argument("rate", metavar="N", help="starts a second over all processes; 0 is unlimited")
    type_argument(parser)


@command(
    "queuectl rate-limit 10",
    "queuectl rate-limit 0.5 --type send_email",
    arguments=_rate_arguments,
    makes_queue=True,
)
def rate_limit(call: Call) -> int:
    """Limit how many jobs start a second, or how many of a type."""
    type = call.arguments.type
    call.queue.set_rate_limit(call.arguments.rate, type)
    rate = call.queue.settings().get("rate_limit", type or "")
    if call.wants_json:
        print_json({"tasksPerSecond": rate} | ({"type": type} if type else {}))
    else:
        print_line(f"{type or 'all types'}: " + (f"{rate:g} starts a second" if rate else "unlimited"))
    return DONE
