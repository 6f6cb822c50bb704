"""Other job queues on PostgreSQL, measured beside ours. Each runs in an environment that holds only peers."""
