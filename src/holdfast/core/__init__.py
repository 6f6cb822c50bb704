"""Pure decisions: what a job is, how it lives, when it is tried again. No SQL, no threads, no clock."""
