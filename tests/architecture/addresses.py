"""The address of PostgreSQL in the docs, and the test server in its place."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import parse_qsl, urlencode

import psycopg
from psycopg import sql

from tests.postgres import drop_schema, new_schema, server_url

WRITTEN = re.compile(r"(postgresql(?:\+\w+)?):(//app@db\.example\.com/app)(?:\?([\w=&]+))?")
"""As the docs have it: with `?schema=` it is a queue's; `postgresql+driver:` is SQLAlchemy's."""


@contextmanager
def server_in_place() -> Iterator[Callable[[str], str]]:
    """Gives what makes a text name the test server.

    There is a fresh schema for each queue that the texts name, and one for the application's own tables.
    """
    made: dict[str, str] = {}

    def replace(found: re.Match[str]) -> str:
        scheme, _, given = found.groups()
        place, _, query = server_url().partition("?")
        options = dict(parse_qsl(query)) | dict(parse_qsl(given or ""))
        if "schema" in options:
            options["schema"] = made.setdefault(options["schema"], new_schema())
        options["options"] = f"-csearch_path={_application(made)}"
        address = place.replace("postgresql:", f"{scheme}:", 1)
        return f"{address}?{urlencode(options, safe='/')}"

    try:
        yield lambda text: WRITTEN.sub(replace, text)
    finally:
        for schema in made.values():
            drop_schema(schema)


def _application(made: dict[str, str]) -> str:
    if "" not in made:
        made[""] = new_schema()
        with psycopg.connect(server_url(), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(made[""])))
    return made[""]
