"""Which of our errors the driver's become."""

from __future__ import annotations

import psycopg
import pytest

from holdfast.store.postgres.errors import ConnectionLost, raise_translated


@pytest.mark.parametrize("kind", [psycopg.DatabaseError, psycopg.OperationalError, psycopg.InterfaceError])
def test_an_error_without_a_state_that_libpq_raised_is_a_lost_connection(kind: type[psycopg.Error]) -> None:
    with pytest.raises(ConnectionLost, match=r"^postgresql://there: server closed the connection$"):
        raise_translated(kind("server closed the connection\n\tbefore"), "postgresql://there")


@pytest.mark.parametrize("kind", [psycopg.ProgrammingError, psycopg.DataError, psycopg.NotSupportedError])
def test_a_mistake_in_what_the_driver_was_asked_stays_as_it_is(kind: type[psycopg.Error]) -> None:
    with pytest.raises(kind):
        raise_translated(kind("can't adapt"), "postgresql://there")
