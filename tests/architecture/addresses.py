"""The address of PostgreSQL in the docs, and the test server in its place."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import parse_qsl, urlencode

from tests.postgres import drop_schema, new_schema, server_url

WRITTEN = re.compile(r"(postgresql(?:\+\w+)?):(//app@db\.example\.com/app)(?:\?([\w=&]+))?")
"""As the docs have it; `postgresql+driver:` is SQLAlchemy's, which knows nothing of a queue's schema."""


@contextmanager
def server_in_place() -> Iterator[Callable[[str], str]]:
    """Gives what makes a text name the test server, with a fresh schema for each that the texts name."""
    schemas: dict[str, str] = {}

    def replace(found: re.Match[str]) -> str:
        scheme, _, given = found.groups()
        place, _, query = server_url().partition("?")
        options = dict(parse_qsl(query))
        if scheme == "postgresql":
            options |= dict(parse_qsl(given or ""))
            named = options.get("schema", "")
            options["schema"] = schemas[named] = schemas.get(named) or new_schema()
        address = place.replace("postgresql:", f"{scheme}:", 1)
        return f"{address}?{urlencode(options, safe='/')}" if options else address

    try:
        yield lambda text: WRITTEN.sub(replace, text)
    finally:
        for schema in schemas.values():
            drop_schema(schema)
