"""What people and monitoring see: log lines, metrics, reports and checks."""
