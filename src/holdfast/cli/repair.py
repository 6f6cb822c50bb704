"""queuectl retry, cancel, delete, dlq and cleanup: mending what went wrong."""

from __future__ import annotations

from typing import Any

from holdfast.cli.command import DONE, FAILED, Call, Parser, UsageError, command, for_each, say
from holdfast.cli.enqueue import parse_object
from holdfast.cli.look import filter_arguments, filters_of, page_arguments, print_jobs
from holdfast.cli.output import print_json, print_line
from holdfast.core.secret_reuse import restore_secrets
from holdfast.jobs import install
from holdfast.listing import MOST_SEARCHED
from holdfast.observe import shapes
from holdfast.operate import matching, operate

_FILTERS = ("type", "error", "search", "since", "until")


def _ids(parser: Parser) -> None:
    parser.add_argument("ids", nargs="+", metavar="ID", help="the jobs' ids")


def _retry_arguments(parser: Parser) -> None:
    _ids(parser)
    parser.add_argument("--payload", metavar="JSON", help="run it with this payload instead")


@command(
    "queuectl retry job1",
    """queuectl retry job1 --payload '{"command": "echo fixed"}'""",
    arguments=_retry_arguments,
)
def retry(call: Call) -> int:
    """Run failed, cancelled or waiting-for-retry jobs again, from the first attempt.

    A field of --payload that says [redacted], as `show` prints it, keeps its stored value.
    """
    arguments = call.arguments
    payload = None
    if arguments.payload is not None:
        if len(arguments.ids) > 1:
            raise UsageError("queuectl retry: --payload goes with one ID")
        payload = parse_object(arguments.payload, "--payload")

    def retry_one(id: str) -> dict[str, Any]:
        stored = None if payload is None else call.queue.get(id)
        edited = payload if stored is None else restore_secrets(payload, stored.payload)
        return shapes.retried(call.queue.retry(id, edited))

    return _answer(call, arguments.ids, retry_one, "{id} is pending again")


@command("queuectl cancel job1 job2", arguments=_ids)
def cancel(call: Call) -> int:
    """Cancel waiting jobs now, and ask running ones to stop."""

    def cancel_one(id: str) -> dict[str, Any]:
        return shapes.cancelled(call.queue.cancel(id))

    return _answer(call, call.arguments.ids, cancel_one, "{id} is {state}")


@command("queuectl delete job1", arguments=_ids)
def delete(call: Call) -> int:
    """Delete finished jobs, their history and their output."""
    install(call.queue)  # which removes the logs of deleted commands

    def delete_one(id: str) -> dict[str, Any]:
        call.queue.delete(id)
        return {"id": id, "deleted": True}

    return _answer(call, call.arguments.ids, delete_one, "{id} is deleted")


def _answer(call: Call, ids: list[str], action: Any, text: str) -> int:
    """Do it for each id and print what came of it: one answer for one id, a list for several."""
    call.queue.open()  # what is wrong with the database is said once, not for each id
    done, code = for_each(ids, action)
    if call.wants_json:
        if len(ids) > 1:
            print_json(done)
        elif done:
            print_json(done[0])
        return code
    for answer in done:
        asked = answer.get("cancelRequested") and answer["status"] == "processing"
        print_line(text.format(id=answer["id"], state="asked to stop" if asked else "cancelled"))
    return code


@command("queuectl dlq list", arguments=page_arguments)
def dlq_list(call: Call) -> int:
    """List the jobs that failed for good, newest first."""
    return print_jobs(call, ["failed"])


def _dlq_retry_arguments(parser: Parser) -> None:
    parser.add_argument("ids", nargs="*", metavar="ID", help="the jobs' ids")
    parser.add_argument("--all", action="store_true", help="every job that failed for good")
    filter_arguments(parser)


@command(
    "queuectl dlq retry job1",
    "queuectl dlq retry --all --type send_email",
    "queuectl dlq retry --all --error 'TimeoutError: no answer after 30 s'",
    arguments=_dlq_retry_arguments,
)
def dlq_retry(call: Call) -> int:
    """Run jobs from the dead-letter queue again, from the first attempt.

    With --all the other options say which: all that they fit.
    """
    arguments = call.arguments
    if bool(arguments.ids) == arguments.all:
        raise UsageError("queuectl dlq retry: say the IDs, or --all")
    given = [name for name in _FILTERS if getattr(arguments, name) is not None]
    if not arguments.all:
        if given:
            raise UsageError(f"queuectl dlq retry: --{given[0]} goes with --all")
        return _answer(call, arguments.ids, lambda id: _retry_dead(call, id), "{id} is pending again")
    if given in ([], ["type"]):
        count, left = call.queue.retry_all(arguments.type)
    else:
        count, left = _retry_matching(call)
    if call.wants_json:
        print_json({"retried": count, "left": left})
    else:
        print_line("1 job is pending again" if count == 1 else f"{count} jobs are pending again")
    if left:
        say(f"not retried: {left}, as another job holds the key; queuectl retry ID names it")
        return FAILED
    return DONE


def _retry_matching(call: Call) -> tuple[int, int]:
    """Retry those that fit now; how many were, and how many were left."""
    filters = {"status": "failed", **filters_of(call)}
    search = call.arguments.search
    failed = 0 if search is None else call.queue.count(**filters, cap=MOST_SEARCHED + 1)
    made = operate(call.queue, "retry", matching(call.queue, **filters, search=search))
    if failed > MOST_SEARCHED:
        say(f"only the newest {MOST_SEARCHED} were searched; --until and --type reach the others")
    return made.done, made.refused


def _retry_dead(call: Call, id: str) -> dict[str, Any]:
    from holdfast.errors import JobNotFound, WrongState

    job = call.queue.get(id)
    if job is None:
        raise JobNotFound(id)
    if job.status != "failed":
        raise WrongState(id, job.status, "retried from the dead-letter queue", "it holds failed jobs only")
    return shapes.retried(call.queue.retry(id))


def _older_than(parser: Parser) -> None:
    parser.add_argument(
        "--older-than", metavar="AGE", required=True, help="finished longer ago than: 12h, 7d, 2w"
    )


@command("queuectl dlq purge --older-than 30d", arguments=_older_than)
def dlq_purge(call: Call) -> int:
    """Delete failed jobs that finished longer ago than an age."""
    install(call.queue)  # which removes the logs of deleted commands
    return _deleted(call, call.queue.purge(call.arguments.older_than))


@command("queuectl cleanup --older-than 7d", arguments=_older_than)
def cleanup(call: Call) -> int:
    """Delete completed and cancelled jobs that finished longer ago than an age."""
    install(call.queue)  # which removes the logs of deleted commands
    return _deleted(call, call.queue.cleanup(call.arguments.older_than))


def _deleted(call: Call, count: int) -> int:
    if call.wants_json:
        print_json({"deleted": count})
    else:
        print_line("1 job deleted" if count == 1 else f"{count} jobs deleted")
    return DONE
