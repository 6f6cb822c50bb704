"""The SQLite schema, as numbered migrations."""

from __future__ import annotations

from holdfast.store.migrate import VERSION_TABLE, Migration
from holdfast.store.sqlite import jobs_table

ERROR_GROUP = "holdfast_error_group"
"""A function that a connection has while it migrates: core.error_group for SQL."""

# Hot indexes are partial, so that what waits for its time and what is over costs a claim nothing.
_INDEXES = (
    # claim
    "CREATE INDEX holdfast_jobs_pending ON holdfast_jobs (type, priority DESC, seq) WHERE status = 'pending'",
    # promote
    "CREATE INDEX holdfast_jobs_scheduled ON holdfast_jobs (due_at) WHERE status = 'scheduled'",
    # reap
    "CREATE INDEX holdfast_jobs_leased ON holdfast_jobs (lease_expires_at) WHERE status = 'processing'",
    # cancel a running job
    """CREATE INDEX holdfast_jobs_cancelling ON holdfast_jobs (worker_id)
    WHERE status = 'processing' AND cancel_requested = 1""",
    # at most one job of a type holds a key
    "CREATE UNIQUE INDEX holdfast_jobs_key ON holdfast_jobs (type, key) WHERE key_held = 1",
    # prune, and what ran lately
    "CREATE INDEX holdfast_jobs_finished ON holdfast_jobs (finished_at) WHERE finished_at IS NOT NULL",
    # lists
    "CREATE INDEX holdfast_jobs_type ON holdfast_jobs (type, seq)",
    "CREATE INDEX holdfast_jobs_failed ON holdfast_jobs (seq) WHERE status = 'failed'",
    "CREATE INDEX holdfast_jobs_parent ON holdfast_jobs (parent_id) WHERE parent_id IS NOT NULL",
)

_STATUSES = ("scheduled", "pending", "processing", "completed", "failed", "cancelled")


def _moved(column: str) -> str:
    return f"{column} = {column} - (OLD.status = '{column}') + (NEW.status = '{column}')"


# Counts are kept by triggers: exact whoever writes, also in an application's own transaction. They cost a
# quarter of a drain's SQL, and no page, limit or claim ever counts a million rows.
_COUNTING = (
    f"""CREATE TABLE holdfast_counts (
        type TEXT PRIMARY KEY,
        {", ".join(f"{status} INTEGER NOT NULL DEFAULT 0" for status in _STATUSES)}
    ) WITHOUT ROWID""",
    f"""CREATE TRIGGER holdfast_jobs_inserted AFTER INSERT ON holdfast_jobs BEGIN
        INSERT INTO holdfast_counts (type, {", ".join(_STATUSES)})
        VALUES (NEW.type, {", ".join(f"NEW.status = '{status}'" for status in _STATUSES)})
        ON CONFLICT (type) DO UPDATE SET
        {", ".join(f"{status} = {status} + excluded.{status}" for status in _STATUSES)};
    END""",
    f"""CREATE TRIGGER holdfast_jobs_moved AFTER UPDATE OF status ON holdfast_jobs
    WHEN OLD.status <> NEW.status BEGIN
        UPDATE holdfast_counts SET {", ".join(_moved(status) for status in _STATUSES)} WHERE type = NEW.type;
    END""",
    f"""CREATE TRIGGER holdfast_jobs_deleted AFTER DELETE ON holdfast_jobs BEGIN
        UPDATE holdfast_counts
        SET {", ".join(f"{status} = {status} - (OLD.status = '{status}')" for status in _STATUSES)}
        WHERE type = OLD.type;
        DELETE FROM holdfast_failures WHERE seq = OLD.seq;
        DELETE FROM holdfast_links WHERE parent_id = OLD.id;
    END""",
)

_TABLES = (
    f"CREATE TABLE {VERSION_TABLE} (version INTEGER NOT NULL)",
    f"INSERT INTO {VERSION_TABLE} (version) VALUES (0)",
    f"""CREATE TABLE holdfast_jobs (
        -- never given twice: it names a job in every guard
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        type TEXT NOT NULL,
        status TEXT NOT NULL CHECK (status IN ({", ".join(f"'{status}'" for status in _STATUSES)})),
        priority INTEGER NOT NULL DEFAULT 0,
        attempts INTEGER NOT NULL DEFAULT 0,
        max_attempts INTEGER,
        version INTEGER NOT NULL DEFAULT 0,
        key TEXT,
        key_for REAL,
        key_held INTEGER NOT NULL DEFAULT 0,
        key_until INTEGER,
        run_at INTEGER,
        -- when a waiting job became, or becomes, ready to run
        due_at INTEGER NOT NULL,
        timeout REAL,
        parent_id TEXT,
        cancel_requested INTEGER NOT NULL DEFAULT 0,
        worker_id TEXT,
        lease_expires_at INTEGER,
        created_at INTEGER NOT NULL,
        updated_at INTEGER NOT NULL,
        started_at INTEGER,
        finished_at INTEGER,
        progress REAL,
        progress_message TEXT,
        error TEXT,
        token TEXT NOT NULL,
        payload TEXT NOT NULL,
        result TEXT
    )""",
    """CREATE TABLE holdfast_failures (
        seq INTEGER NOT NULL,
        version INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        started_at INTEGER NOT NULL,
        finished_at INTEGER NOT NULL,
        worker_id TEXT,
        error TEXT NOT NULL,
        traceback TEXT,
        detail TEXT,
        PRIMARY KEY (seq, version)
    ) WITHOUT ROWID""",
    """CREATE TABLE holdfast_links (
        parent_id TEXT NOT NULL,
        child_id TEXT NOT NULL,
        PRIMARY KEY (parent_id, child_id)
    ) WITHOUT ROWID""",
    """CREATE TABLE holdfast_settings (
        name TEXT NOT NULL,
        type TEXT NOT NULL,
        value TEXT NOT NULL,
        PRIMARY KEY (name, type)
    ) WITHOUT ROWID""",
    "CREATE TABLE holdfast_pauses (type TEXT PRIMARY KEY, paused_at INTEGER NOT NULL) WITHOUT ROWID",
    """CREATE TABLE holdfast_limits (
        name TEXT PRIMARY KEY,
        tokens REAL NOT NULL,
        refilled_at INTEGER NOT NULL
    ) WITHOUT ROWID""",
    """CREATE TABLE holdfast_workers (
        id TEXT PRIMARY KEY,
        host TEXT NOT NULL,
        pid INTEGER NOT NULL,
        state TEXT NOT NULL,
        concurrency INTEGER NOT NULL,
        types TEXT NOT NULL,
        started_at INTEGER NOT NULL,
        heartbeat_at INTEGER NOT NULL
    ) WITHOUT ROWID""",
    """CREATE TABLE holdfast_types (
        type TEXT PRIMARY KEY,
        executor TEXT NOT NULL,
        schema TEXT NOT NULL
    ) WITHOUT ROWID""",
    """CREATE TABLE holdfast_statistics (
        minute INTEGER NOT NULL,
        type TEXT NOT NULL,
        worker_id TEXT NOT NULL,
        completed INTEGER NOT NULL,
        failed INTEGER NOT NULL,
        retried INTEGER NOT NULL,
        reaped INTEGER NOT NULL,
        wait_seconds REAL NOT NULL,
        run_seconds REAL NOT NULL,
        waits TEXT NOT NULL,
        runs TEXT NOT NULL,
        PRIMARY KEY (minute, type, worker_id)
    ) WITHOUT ROWID""",
)

_WORKERS = (
    # 0: go on, 1: stop in order, 2: stop at once
    "ALTER TABLE holdfast_workers ADD COLUMN stop INTEGER NOT NULL DEFAULT 0",
    # the slots that its code gives a type, by type
    "ALTER TABLE holdfast_workers ADD COLUMN slots TEXT NOT NULL DEFAULT '{}'",
    # drain, and lists of what waits for a retry
    """CREATE INDEX holdfast_jobs_retrying ON holdfast_jobs (type, seq)
    WHERE status = 'scheduled' AND attempts > 0""",
    # the job that has waited longest: exact, for 4 % of an insert, claim and finish
    "CREATE INDEX holdfast_jobs_ready ON holdfast_jobs (due_at) WHERE status = 'pending'",
    # which keys were used again
    "CREATE INDEX holdfast_jobs_keyed ON holdfast_jobs (type, key) WHERE key IS NOT NULL",
)

_WATCHED = (
    # how many jobs of a type there ever were; for those deleted before this migration nobody knows
    "ALTER TABLE holdfast_counts ADD COLUMN enqueued INTEGER NOT NULL DEFAULT 0",
    f"UPDATE holdfast_counts SET enqueued = {' + '.join(_STATUSES)}",
    "DROP TRIGGER holdfast_jobs_inserted",
    f"""CREATE TRIGGER holdfast_jobs_inserted AFTER INSERT ON holdfast_jobs BEGIN
        INSERT INTO holdfast_counts (type, enqueued, {", ".join(_STATUSES)})
        VALUES (NEW.type, 1, {", ".join(f"NEW.status = '{status}'" for status in _STATUSES)})
        ON CONFLICT (type) DO UPDATE SET enqueued = enqueued + 1,
        {", ".join(f"{status} = {status} + excluded.{status}" for status in _STATUSES)};
    END""",
    # when its loop last came round, which its heartbeat does not depend on
    "ALTER TABLE holdfast_workers ADD COLUMN turned_at INTEGER",
    # how long ready jobs were held back by a rate limit or max_running
    "ALTER TABLE holdfast_statistics ADD COLUMN limited_seconds REAL NOT NULL DEFAULT 0",
)

_LISTED = (
    # lists by state: of what is over, which is written once, and of what waits for its time
    """CREATE INDEX holdfast_jobs_ended ON holdfast_jobs (type, status, seq)
    WHERE finished_at IS NOT NULL""",
    "CREATE INDEX holdfast_jobs_later ON holdfast_jobs (type, seq) WHERE status = 'scheduled'",
)

# In every state the jobs of one type and priority lie in the order of `seq`, and those that are over also
# in the order of their ends. The names are those of before: a release that still has the file open asks for
# some of them by name.
_SORTED = (
    "DROP INDEX IF EXISTS holdfast_jobs_ended",
    """CREATE INDEX holdfast_jobs_ended ON holdfast_jobs (type, status, priority DESC, seq)
    WHERE finished_at IS NOT NULL""",
    "DROP INDEX IF EXISTS holdfast_jobs_later",
    """CREATE INDEX holdfast_jobs_later ON holdfast_jobs (type, priority DESC, seq)
    WHERE status = 'scheduled'""",
    "DROP INDEX holdfast_jobs_retrying",
    """CREATE INDEX holdfast_jobs_retrying ON holdfast_jobs (type, priority DESC, seq)
    WHERE status = 'scheduled' AND attempts > 0""",
    "DROP INDEX holdfast_jobs_finished",
    """CREATE INDEX holdfast_jobs_finished ON holdfast_jobs (type, status, finished_at)
    WHERE finished_at IS NOT NULL""",
)

# Errors are grouped when a job fails, and counted by triggers, as the jobs are. What an older release fails
# meanwhile has no group, and is in no count. Whatever lets a job fail, or retries it, also says when it is
# due; claims and completions do not, so by that column the triggers cost them nothing.
_GROUPED = (
    "ALTER TABLE holdfast_jobs ADD COLUMN error_group TEXT",
    f"""UPDATE holdfast_jobs SET error_group = {ERROR_GROUP}(CAST(error AS BLOB))
    WHERE status = 'failed'""",
    """CREATE INDEX holdfast_jobs_alike ON holdfast_jobs (type, error_group, priority DESC, seq)
    WHERE status = 'failed'""",
    """CREATE INDEX holdfast_jobs_alike_finished ON holdfast_jobs (type, error_group, finished_at)
    WHERE status = 'failed'""",
    """CREATE TABLE holdfast_errors (
        type TEXT NOT NULL,
        error_group TEXT NOT NULL,
        jobs INTEGER NOT NULL,
        last_at INTEGER NOT NULL,
        PRIMARY KEY (type, error_group)
    ) WITHOUT ROWID""",
    "CREATE INDEX holdfast_errors_largest ON holdfast_errors (jobs, last_at)",
    """INSERT INTO holdfast_errors (type, error_group, jobs, last_at)
    SELECT type, error_group, count(*), max(coalesce(finished_at, updated_at))
    FROM holdfast_jobs WHERE status = 'failed' GROUP BY type, error_group""",
    """CREATE TRIGGER holdfast_errors_came AFTER UPDATE OF due_at ON holdfast_jobs
    WHEN NEW.status = 'failed' AND OLD.status <> 'failed' AND NEW.error_group IS NOT NULL BEGIN
        INSERT INTO holdfast_errors (type, error_group, jobs, last_at)
        VALUES (NEW.type, NEW.error_group, 1, coalesce(NEW.finished_at, NEW.updated_at))
        ON CONFLICT (type, error_group) DO UPDATE
        SET jobs = jobs + 1, last_at = max(last_at, excluded.last_at);
    END""",
    """CREATE TRIGGER holdfast_errors_left AFTER UPDATE OF due_at ON holdfast_jobs
    WHEN OLD.status = 'failed' AND NEW.status <> 'failed' AND OLD.error_group IS NOT NULL BEGIN
        UPDATE holdfast_errors SET jobs = jobs - 1 WHERE type = OLD.type AND error_group = OLD.error_group;
        DELETE FROM holdfast_errors
        WHERE type = OLD.type AND error_group = OLD.error_group AND jobs <= 0;
    END""",
    """CREATE TRIGGER holdfast_errors_deleted AFTER DELETE ON holdfast_jobs
    WHEN OLD.status = 'failed' AND OLD.error_group IS NOT NULL BEGIN
        UPDATE holdfast_errors SET jobs = jobs - 1 WHERE type = OLD.type AND error_group = OLD.error_group;
        DELETE FROM holdfast_errors
        WHERE type = OLD.type AND error_group = OLD.error_group AND jobs <= 0;
    END""",
)

# One row: the report of the last reconciliation.
_RECONCILED = (
    """CREATE TABLE holdfast_reconciliation (
        number INTEGER PRIMARY KEY CHECK (number = 1),
        report TEXT NOT NULL
    )""",
)

# promote: the most urgent of those that are due
_URGENT = (
    "CREATE INDEX holdfast_jobs_due ON holdfast_jobs (priority DESC, due_at) WHERE status = 'scheduled'",
)

# Groups, and what is known of an attempt whose worker is lost. The index of those that wait also tells their
# groups: payloads may be large, and lie before that column.
_STARTING = (
    'ALTER TABLE holdfast_jobs ADD COLUMN "group" TEXT',
    # whether the handler of the running attempt has begun for sure
    "ALTER TABLE holdfast_jobs ADD COLUMN has_started INTEGER NOT NULL DEFAULT 0",
    # how many workers in a row were lost while they ran it
    "ALTER TABLE holdfast_jobs ADD COLUMN losses INTEGER NOT NULL DEFAULT 0",
    "DROP INDEX holdfast_jobs_pending",
    """CREATE INDEX holdfast_jobs_pending ON holdfast_jobs (type, priority DESC, seq, "group")
    WHERE status = 'pending'""",
    # claim: the first job of each group
    """CREATE INDEX holdfast_jobs_grouped ON holdfast_jobs (type, priority DESC, "group", seq)
    WHERE status = 'pending' AND "group" IS NOT NULL""",
    # claim: jobs that have to run alone
    """CREATE INDEX holdfast_jobs_suspect ON holdfast_jobs (priority DESC, seq)
    WHERE status = 'pending' AND losses >= 2""",
    # how many of a group run
    """CREATE INDEX holdfast_jobs_busy_groups ON holdfast_jobs ("group", type)
    WHERE status = 'processing' AND "group" IS NOT NULL""",
    # how many of a type run
    "DROP INDEX holdfast_jobs_leased",
    """CREATE INDEX holdfast_jobs_leased ON holdfast_jobs (lease_expires_at, type)
    WHERE status = 'processing'""",
    # lists
    """CREATE INDEX holdfast_jobs_group ON holdfast_jobs ("group", seq) WHERE "group" IS NOT NULL""",
    # the back-off that its code sets, by type: who takes over its jobs may not know that code
    "ALTER TABLE holdfast_workers ADD COLUMN backoffs TEXT NOT NULL DEFAULT '{}'",
    # Only for updates that set due_at: claims and completions don't, and update the counts themselves.
    "DROP TRIGGER holdfast_jobs_moved",
    f"""CREATE TRIGGER holdfast_jobs_moved AFTER UPDATE OF due_at ON holdfast_jobs
    WHEN OLD.status <> NEW.status BEGIN
        UPDATE holdfast_counts SET {", ".join(_moved(status) for status in _STATUSES)} WHERE type = NEW.type;
    END""",
    # raised by every change of a setting or a pause: a claim is made by the latest, or not at all
    f"ALTER TABLE {VERSION_TABLE} ADD COLUMN settings_version INTEGER NOT NULL DEFAULT 0",
)

_TRIGGERS = {
    statement.split()[2]: statement
    for statement in (*_COUNTING, *_WATCHED, *_GROUPED, *_STARTING)
    if statement.startswith("CREATE TRIGGER")
}
"""Of each trigger its last form."""

_SLIM = (
    *jobs_table.REBUILT,
    *jobs_table.INDEXES,
    *(statement for name, statement in _TRIGGERS.items() if name != "holdfast_jobs_deleted"),
    _TRIGGERS["holdfast_jobs_deleted"].replace(
        "END",
        f"""    UPDATE {VERSION_TABLE} SET last_seq = OLD.seq WHERE last_seq < OLD.seq;
    END""",
    ),
)

MIGRATIONS = (
    Migration(1, "the queue", (*_TABLES, *_INDEXES, *_COUNTING)),
    Migration(2, "workers can be asked to stop, and tell the slots of a type", _WORKERS),
    Migration(3, "metrics, and lists by state however long the queue", (*_WATCHED, *_LISTED)),
    Migration(4, "lists in every order, and failed jobs by their errors", (*_SORTED, *_GROUPED)),
    Migration(5, "the last reconciliation", _RECONCILED),
    Migration(6, "due jobs by priority", _URGENT),
    Migration(7, "groups, and which attempts have started", _STARTING),
    Migration(8, "fewer entries for a job that waits", _SLIM),
)
