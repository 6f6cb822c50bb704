"""The entry point of queuectl: its commands, and errors as one line."""

from __future__ import annotations

import sys

import click

from holdfast import __version__
from holdfast.errors import HoldfastError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="queuectl")
@click.option("--database", metavar="URL", envvar="QUEUECTL_DATABASE_URL", help="The queue's database.")
@click.pass_context
def queuectl(context: click.Context, database: str | None) -> None:
    """Control a Holdfast job queue."""
    context.obj = database


@queuectl.command()
@click.pass_obj
def migrate(database: str | None) -> None:
    """Make the queue's tables, or bring them up to date.

    Example: queuectl --database sqlite:///app.db migrate
    """
    from holdfast.queue import Queue

    with Queue(database) as queue:
        queue.store.now()
        click.echo(f"{queue.url} is up to date")


def main() -> None:
    """Run queuectl."""
    try:
        queuectl(standalone_mode=True)
    except HoldfastError as error:
        click.echo(f"queuectl: {error}", err=True)
        sys.exit(1)
