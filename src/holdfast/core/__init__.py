"""Pure decisions: what a job is, its life cycle, when it is retried. No SQL, no threads, no clock."""
