"""A small application that stores its data as JSON files and runs every side effect as a job.

A user action enqueues a job and does nothing else. The handler writes the record's file in the step that
completes the job, and from then on the follow-up jobs exist: an S3 bucket, a page for readers, and the facts
that Claude Code finds in the requirement. docs/side-effects.md walks through it, crashes included.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from string import Template
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from holdfast import Context, Fail, HoldfastError, Queue, Reconcile
from holdfast.jobs.files import file_subject, not_as_written, publish

FOLDER = Path(os.environ.get("REQUIREMENTS_FOLDER", "data")).absolute()

PROMPT = Template("""\
Read this requirement of a software system. Answer with one JSON object and nothing else:
"actor" is who wants it, "action" what should happen, "measure" how it is tested, or null.

Requirement $id:
$text
""")

PAGE = Template("# $id\n\n$text\n")

queue = Queue()  # the queue in QUEUECTL_HOME, which queuectl uses too

Id = Annotated[str, Meta(pattern=r"^[A-Z]{1,10}-[0-9]{1,6}\Z")]
Text = Annotated[str, Meta(pattern=r"\S", max_length=10_000)]


class Requirement(Struct):
    """A record, as stored in its file."""

    id: Id
    text: Text
    bucket: str


# `queuectl reconcile --app requirements_app:queue` finds files that somebody else has changed.
@queue.job(
    reconcile=Reconcile(
        not_as_written, subject=lambda job: file_subject(str(requirement_file(job.payload["id"])))
    )
)
def create_requirement(ctx: Context, id: Id, text: Text) -> dict[str, Any]:
    """Write the record, and enqueue the follow-up jobs.

    Each attempt writes the same bytes, so an attempt after a crash finds its own file and succeeds, while
    a different requirement with this id is refused.
    """
    requirement = Requirement(id, text, bucket=f"requirement-{id.lower()}")
    ctx.enqueue("sync_aws", bucket_of(requirement))
    ctx.enqueue("create_file", {"path": str(page_file(id)), "content": PAGE.substitute(id=id, text=text)})
    ctx.enqueue(extract_facts, {"id": id})
    content = msgspec.json.format(msgspec.json.encode(requirement)) + b"\n"
    return publish(ctx, str(requirement_file(id)), content, overwrite=False)


@queue.job
def extract_facts(ctx: Context, id: Id) -> None:
    """Build the prompt from the current record and enqueue it: from here on, it is frozen."""
    ctx.enqueue("claude_extraction", extraction_of(id))


@queue.job
def remove_requirement(ctx: Context, id: Id) -> None:
    """Enqueue everything that removes a requirement: either all of these jobs exist, or none.

    An extraction that is still running would write its facts afterwards, so cancel it first.
    """
    requirement = read(requirement_file(id))
    ctx.enqueue("sync_aws", {**bucket_of(requirement), "action": "delete"})
    for file in (facts_file(id), page_file(id)):
        ctx.enqueue("delete_file", {"path": str(file)})
    ctx.enqueue("delete_file", {"path": str(requirement_file(id)), "requireExists": True})


def prompt_for(requirement_file: str | os.PathLike[str]) -> str:
    """The prompt that asks for the facts in a requirement. What it returns is what is frozen and hashed."""
    requirement = read(Path(requirement_file))
    return PROMPT.substitute(id=requirement.id, text=requirement.text)


def extraction_of(id: str) -> dict[str, Any]:
    return {
        "requirementId": id,
        "prompt": prompt_for(requirement_file(id)),
        "targetPath": str(facts_file(id)),
    }


def bucket_of(requirement: Requirement) -> dict[str, Any]:
    tags = {"TagSet": [{"Key": "requirement", "Value": requirement.id}]}
    return {"resourceType": "s3_bucket", "resourceId": requirement.bucket, "config": {"Tagging": tags}}


def requirement_file(id: str) -> Path:
    return FOLDER / "requirements" / f"{id}.json"


def facts_file(id: str) -> Path:
    return FOLDER / "facts" / f"{id}.json"


def page_file(id: str) -> Path:
    return FOLDER / "pages" / f"{id}.md"


def read(file: Path) -> Requirement:
    """The record in a file. If there is none, a retry would not help."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Requirement)
    except FileNotFoundError:
        raise Fail(f"there is no requirement {file.stem}") from None
    except msgspec.MsgspecError as error:
        raise Fail(f"{file} is not a valid requirement: {error}") from None


# The user's actions. Each action that changes something enqueues one job and prints its id once it is stored.


def add(id: str, text: str) -> None:
    # The key turns two clicks into one job.
    print(create_requirement.with_options(key=id).enqueue(id=id, text=text).id)


def extract(id: str) -> None:
    print(queue.enqueue("claude_extraction", extraction_of(id)).id)


def remove(id: str) -> None:
    print(remove_requirement.with_options(key=id).enqueue(id=id).id)


def show_all() -> None:
    for file in sorted((FOLDER / "requirements").glob("*.json")):
        requirement = read(file)
        facts = facts_file(requirement.id)
        print(f"{requirement.id}  {requirement.text}")
        print(f"    bucket {requirement.bucket}, {'facts' if facts.exists() else 'no facts yet'}")


ACTIONS: dict[str, Callable[..., None]] = {"add": add, "extract": extract, "remove": remove, "list": show_all}


def main() -> None:
    parser = argparse.ArgumentParser(description="Requirements as JSON files; every side effect is a job.")
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    adding = actions.add_parser(
        "add", help="add a requirement, for example: add R-1 'Exports finish in time'"
    )
    extracting = actions.add_parser("extract", help="extract the facts again, from the current text")
    removing = actions.add_parser("remove", help="remove a requirement and everything that belongs to it")
    for action in (adding, extracting, removing):
        action.add_argument("id", metavar="ID")
    adding.add_argument("text", metavar="TEXT")
    actions.add_parser("list", help="list the stored requirements")

    given = vars(parser.parse_args())
    name = given.pop("action")
    if name is None:
        parser.print_help()
        return
    try:
        ACTIONS[name](**given)
    except (HoldfastError, Fail) as error:
        sys.exit(f"refused: {error}")
    finally:
        queue.close()


if __name__ == "__main__":
    main()
