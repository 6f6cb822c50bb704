"""queuectl retry, cancel, delete, cleanup and dlq: actions on one job or many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from holdfast.cli.command import DONE, FAILED, Call, Command, UsageError, argument, say
from holdfast.cli.enqueue import parse_object
from holdfast.cli.list import FILTERS, filter_arguments, filter_of, page_arguments, print_jobs
from holdfast.cli.output import print_json, print_line
from holdfast.core.filter import MOST_SEARCHED
from holdfast.core.secret_reuse import restore_secrets
from holdfast.errors import ConfigError, HoldfastError, InvalidPayload, StoreError, WrongState
from holdfast.jobs import install
from holdfast.observe import shapes, words

_ids = argument("ids ID", "one or more job ids", nargs="+")
_older_than = argument(
    "--older-than AGE",
    "delete jobs that finished longer ago than this: 12h, 7d, 2w; or before a time",
    required=True,
)


@Command(
    "queuectl retry job1",
    """queuectl retry job1 --payload '{"command": "echo fixed"}'""",
    arguments=(_ids, argument("--payload JSON", "replace the payload; only with one ID")),
)
def retry(call: Call) -> int:
    """Retry failed or cancelled jobs, and jobs waiting for their next attempt.

    The attempt count starts over at zero; the history is kept. A field of --payload that contains
    [redacted], as printed by `show`, keeps its stored value.
    """
    arguments = call.arguments
    payload = None
    if arguments.payload is not None:
        if len(arguments.ids) > 1:
            raise UsageError("--payload can only be used with one ID")
        payload = parse_object(arguments.payload, "--payload")

    def retry_one(id: str) -> dict[str, Any]:
        stored = None if payload is None else call.queue.get(id)
        edited = payload if stored is None else restore_secrets(payload, stored.payload)
        return shapes.retried(call.queue.retry(id, edited))

    return _answer_each(call, retry_one, "is pending again")


@Command("queuectl cancel job1 job2", arguments=(_ids,))
def cancel(call: Call) -> int:
    """Cancel waiting jobs immediately, and ask running ones to stop."""
    return _answer_each(call, lambda id: shapes.cancelled(call.queue.cancel(id)), "is cancelled")


@Command("queuectl delete job1", arguments=(_ids,))
def delete(call: Call) -> int:
    """Delete finished jobs with their history and output."""
    install(call.queue)  # which removes the logs of deleted commands

    def delete_one(id: str) -> dict[str, Any]:
        call.queue.delete(id)
        return {"id": id, "deleted": True}

    return _answer_each(call, delete_one, "was deleted")


def _answer_each(call: Call, action: Callable[[str], dict[str, Any]], outcome: str) -> int:
    """Apply the action to each id and print the outcome: one result for one id, a list for several.

    Each failure is one line.
    """
    call.queue.open()  # what is wrong with the database is said once, not for each id
    ids, done, code = call.arguments.ids, [], DONE
    for id in ids:
        try:
            done.append(action(id))
        except (StoreError, ConfigError, InvalidPayload):
            raise  # not about this one
        except HoldfastError as error:
            say(str(error))
            code = FAILED
    if not call.wants_json:
        for answer in done:
            asked = answer.get("cancelRequested") and answer["status"] == "processing"
            print_line(f"{answer['id']} {'was asked to stop' if asked else outcome}")
    elif len(ids) > 1:
        print_json(done)
    elif done:
        print_json(done[0])
    return code


@Command("queuectl cleanup --older-than 7d", arguments=(_older_than,))
def cleanup(call: Call) -> None:
    """Delete completed and cancelled jobs older than a given age."""
    _delete_older(call, call.queue.cleanup)


def _delete_older(call: Call, delete: Callable[[str], int]) -> None:
    """Delete jobs older than an age, and print how many were deleted."""
    install(call.queue)  # which removes the logs of deleted commands
    count = delete(call.arguments.older_than)
    call.answer({"deleted": count}, f"{words.plain_plural(count, 'job')} deleted")


@Command("queuectl dlq list", arguments=page_arguments)
def dlq_list(call: Call) -> None:
    """List permanently failed jobs, newest first."""
    print_jobs(call, ["failed"])


@Command(
    "queuectl dlq retry job1",
    "queuectl dlq retry --all --type send_email",
    "queuectl dlq retry --all --error 'TimeoutError: no answer after 30 s'",
    arguments=(
        argument("ids ID", "job ids", nargs="*"),
        argument("--all", "retry every failed job that matches the filters"),
        *filter_arguments,
    ),
)
def dlq_retry(call: Call) -> int:
    """Retry jobs from the dead-letter queue, starting over with all their attempts.

    Give the ids, or --all. The filters narrow --all; without any, every failed job is retried.
    """
    arguments = call.arguments
    if bool(arguments.ids) == arguments.all:
        raise UsageError("give either IDs or --all")
    given = [name for name in FILTERS if getattr(arguments, name) is not None]
    if not arguments.all:
        if given:
            raise UsageError(f"--{given[0].replace('_', '-')} requires --all")
        return _answer_each(call, lambda id: _retry_dead(call, id), "is pending again")
    filter = filter_of(call, ["failed"])
    everything = replace(filter, search=None)
    failed = 0 if filter.wanted is None else call.queue.count(everything, cap=MOST_SEARCHED + 1)
    count, left = call.queue.retry_all(filter)
    if failed > MOST_SEARCHED:
        say(f"only the newest {MOST_SEARCHED} failed jobs were searched; use --until and --type for the rest")
    call.answer(
        {"retried": count, "left": left},
        f"{words.plain_plural(count, 'job')} {'is' if count == 1 else 'are'} pending again",
    )
    if left:
        skipped = words.plain_plural(left, "job")
        say(f"{skipped} skipped because another job holds the key; to see which, run queuectl retry ID")
    return FAILED if left else DONE


def _retry_dead(call: Call, id: str) -> dict[str, Any]:
    job = call.queue.require(id)
    if job.status != "failed":
        raise WrongState(id, job.status, "retried from the dead-letter queue", "it contains failed jobs only")
    return shapes.retried(call.queue.retry(id))


@Command("queuectl dlq purge --older-than 30d", arguments=(_older_than,))
def dlq_purge(call: Call) -> None:
    """Delete failed jobs older than a given age."""
    _delete_older(call, call.queue.purge)
