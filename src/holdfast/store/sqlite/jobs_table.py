"""The table of jobs in its present form, and its indexes."""

from __future__ import annotations

from holdfast.core.job import Status
from holdfast.store.migrate import VERSION_TABLE

# While a job waits and runs, indexes hold only what that requires: a plain enqueue writes four pages, for the
# row, its id, its place in line and the counts. The number of the last job is noted when that job is deleted,
# not with each new one (AUTOINCREMENT). Large columns come last: SQLite reads through them to reach others.
_COLUMNS = """seq, id, type, status, priority, attempts, max_attempts, version, key, key_for, key_held,
    key_until, "group", run_at, due_at, timeout, parent_id, cancel_requested, worker_id, lease_expires_at,
    has_started, losses, created_at, updated_at, started_at, finished_at, error_group, token, progress,
    progress_message, error, payload, result"""

REBUILT = (
    "ALTER TABLE holdfast_jobs RENAME TO holdfast_jobs_before",
    f"""CREATE TABLE holdfast_jobs (
        -- never given twice: it names a job in every guard
        seq INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        type TEXT NOT NULL,
        status TEXT NOT NULL CHECK (status IN ({", ".join(f"'{status.value}'" for status in Status)})),
        priority INTEGER NOT NULL DEFAULT 0,
        attempts INTEGER NOT NULL DEFAULT 0,
        max_attempts INTEGER,
        version INTEGER NOT NULL DEFAULT 0,
        key TEXT,
        key_for REAL,
        key_held INTEGER NOT NULL DEFAULT 0,
        key_until INTEGER,
        "group" TEXT,
        run_at INTEGER,
        -- when a waiting job became, or becomes, ready to run
        due_at INTEGER NOT NULL,
        timeout REAL,
        parent_id TEXT,
        cancel_requested INTEGER NOT NULL DEFAULT 0,
        worker_id TEXT,
        lease_expires_at INTEGER,
        -- whether the handler of the running attempt has begun for sure
        has_started INTEGER NOT NULL DEFAULT 0,
        -- how many workers in a row were lost while they ran it
        losses INTEGER NOT NULL DEFAULT 0,
        created_at INTEGER NOT NULL,
        updated_at INTEGER NOT NULL,
        started_at INTEGER,
        finished_at INTEGER,
        error_group TEXT,
        token TEXT NOT NULL,
        progress REAL,
        progress_message TEXT,
        error TEXT,
        payload TEXT NOT NULL,
        result TEXT
    )""",
    f"INSERT INTO holdfast_jobs ({_COLUMNS}) SELECT {_COLUMNS} FROM holdfast_jobs_before",
    f"ALTER TABLE {VERSION_TABLE} ADD COLUMN last_seq INTEGER NOT NULL DEFAULT 0",
    f"""UPDATE {VERSION_TABLE} SET last_seq = coalesce(
        (SELECT seq FROM sqlite_sequence WHERE name = 'holdfast_jobs_before'), 0)""",
    "DROP TABLE holdfast_jobs_before",
)

INDEXES = (
    # claim
    """CREATE INDEX holdfast_jobs_pending ON holdfast_jobs (type, priority DESC, seq, "group")
    WHERE status = 'pending'""",
    # claim: the first job of each group
    """CREATE INDEX holdfast_jobs_grouped ON holdfast_jobs (type, priority DESC, "group", seq)
    WHERE status = 'pending' AND "group" IS NOT NULL""",
    # claim: jobs that have to run alone
    """CREATE INDEX holdfast_jobs_suspect ON holdfast_jobs (priority DESC, seq)
    WHERE status = 'pending' AND losses >= 2""",
    # the job that has waited longest: of those that were not ready when they came
    """CREATE INDEX holdfast_jobs_ready ON holdfast_jobs (due_at)
    WHERE status = 'pending' AND due_at <> created_at""",
    # promote
    "CREATE INDEX holdfast_jobs_scheduled ON holdfast_jobs (due_at) WHERE status = 'scheduled'",
    # promote: the most urgent of those that are due
    "CREATE INDEX holdfast_jobs_due ON holdfast_jobs (priority DESC, due_at) WHERE status = 'scheduled'",
    # reap, and how many of a type run
    """CREATE INDEX holdfast_jobs_leased ON holdfast_jobs (lease_expires_at, type)
    WHERE status = 'processing'""",
    # how many of a group run
    """CREATE INDEX holdfast_jobs_busy_groups ON holdfast_jobs ("group", type)
    WHERE status = 'processing' AND "group" IS NOT NULL""",
    # cancel a running job
    """CREATE INDEX holdfast_jobs_cancelling ON holdfast_jobs (worker_id)
    WHERE status = 'processing' AND cancel_requested = 1""",
    # at most one job of a type holds a key
    "CREATE UNIQUE INDEX holdfast_jobs_key ON holdfast_jobs (type, key) WHERE key_held = 1",
    # which keys were used again
    "CREATE INDEX holdfast_jobs_keyed ON holdfast_jobs (type, key) WHERE key IS NOT NULL",
    # lists: in every state the jobs of one type and priority lie in the order of `seq`
    """CREATE INDEX holdfast_jobs_later ON holdfast_jobs (type, priority DESC, seq)
    WHERE status = 'scheduled'""",
    """CREATE INDEX holdfast_jobs_retrying ON holdfast_jobs (type, priority DESC, seq)
    WHERE status = 'scheduled' AND attempts > 0""",
    """CREATE INDEX holdfast_jobs_ended ON holdfast_jobs (type, status, priority DESC, seq)
    WHERE finished_at IS NOT NULL""",
    # prune, what ran lately, and lists of what is over in the order of its ends
    """CREATE INDEX holdfast_jobs_finished ON holdfast_jobs (type, status, finished_at)
    WHERE finished_at IS NOT NULL""",
    # failed jobs, all of them and by their errors
    "CREATE INDEX holdfast_jobs_failed ON holdfast_jobs (seq) WHERE status = 'failed'",
    """CREATE INDEX holdfast_jobs_alike ON holdfast_jobs (type, error_group, priority DESC, seq)
    WHERE status = 'failed'""",
    """CREATE INDEX holdfast_jobs_alike_finished ON holdfast_jobs (type, error_group, finished_at)
    WHERE status = 'failed'""",
    # lists of a group, and of a parent's children
    """CREATE INDEX holdfast_jobs_group ON holdfast_jobs ("group", seq) WHERE "group" IS NOT NULL""",
    "CREATE INDEX holdfast_jobs_parent ON holdfast_jobs (parent_id) WHERE parent_id IS NOT NULL",
)
