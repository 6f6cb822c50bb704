"""How long the store waits on PostgreSQL before it gives up."""

PATIENCE = 5.0
"""Seconds to wait for a connection, and to find out what became of a commit."""

LOCK_PATIENCE = 2.0
"""Seconds to wait for somebody's open transaction that has a job, or is about to insert its key or id."""

BRIEF = 0.01
"""The same where others would wait behind it."""
