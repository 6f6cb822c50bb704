"""The present instant inside a statement: the first parameter, or the server's own clock if that is null."""

CLOCK = """clock AS MATERIALIZED (
    SELECT coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now)"""
