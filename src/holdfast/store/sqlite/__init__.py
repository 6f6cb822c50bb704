"""The SQLite engine: the standard library's sqlite3, WAL mode, one writer at a time."""

from holdfast.store.sqlite.open import open_store
from holdfast.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore", "open_store"]
