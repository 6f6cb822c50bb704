"""Other job queues on PostgreSQL, measured beside ours. They run in an environment of their own."""
