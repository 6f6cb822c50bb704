#!/bin/sh
# Queue shell commands: enqueue, run, inspect, fix. The script uses its own folder, and removes it at the end.
set -eu

PATH="$(cd "$(dirname "$0")/.." && pwd)/.venv/bin:$PATH" # where `make` installs queuectl
QUEUECTL_HOME=$(mktemp -d)
export PATH QUEUECTL_HOME
unset QUEUECTL_DATABASE_URL
trap 'queuectl worker stop --force 2> /dev/null || true; rm -rf "$QUEUECTL_HOME"' EXIT

echo "# three commands: one works, one fails, one exceeds its timeout"
queuectl enqueue --id greet --command 'echo "hello from $QUEUECTL_JOB_ID"'
queuectl enqueue --id import --max-attempts 1 --command 'cat orders.csv'
queuectl enqueue --id endless --max-attempts 1 --timeout 0.5s --command 'sleep 600'

echo "# run two workers until no jobs are left"
queuectl worker start --count 2 --drain --log-format text > "$QUEUECTL_HOME/work.log"
queuectl list

echo "# why did they fail?"
queuectl why import
queuectl why endless
queuectl logs greet

echo "# retry the failed job with a corrected command, on a worker in the background"
queuectl retry import --payload '{"command": "echo orders imported"}'
queuectl worker start --detach > /dev/null
queuectl logs import --follow
queuectl status
