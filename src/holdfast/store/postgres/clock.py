"""The present instant inside a statement: a parameter, or the server's own clock if that is null."""

NOW = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
PRESENT = f"coalesce($1::bigint, {NOW})"
CLOCK = f"clock AS MATERIALIZED (SELECT {PRESENT} AS now)"
