"""The PostgreSQL engine: psycopg 3, many writers at a time, on any number of machines."""

from holdfast.store.postgres.open import open_store
from holdfast.store.postgres.store import PostgresStore

__all__ = ["PostgresStore", "open_store"]
