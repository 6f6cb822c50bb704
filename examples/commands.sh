#!/bin/sh
# Commands in a queue, from the shell: enqueue, run, look, mend. It uses a folder of its own and removes it.
set -eu

PATH="$(cd "$(dirname "$0")/.." && pwd)/.venv/bin:$PATH" # where `make` has put queuectl
QUEUECTL_HOME=$(mktemp -d)
export PATH QUEUECTL_HOME
unset QUEUECTL_DATABASE_URL
trap 'queuectl worker stop --force 2> /dev/null || true; rm -rf "$QUEUECTL_HOME"' EXIT

echo "# some commands: one that works, one that fails, one that must not run too long"
queuectl enqueue --id greet --command 'echo "hello from $QUEUECTL_JOB_ID"'
queuectl enqueue --id import --max-attempts 1 --command 'cat orders.csv'
queuectl enqueue --id endless --max-attempts 1 --timeout 0.5s --command 'sleep 600'

echo "# two workers, until nothing is left to do"
queuectl worker start --count 2 --drain --log-format text > "$QUEUECTL_HOME/work.log"
queuectl list

echo "# why?"
queuectl why import
queuectl why endless
queuectl logs greet

echo "# the failed one again, corrected, by a worker in the background"
queuectl retry import --payload '{"command": "echo orders imported"}'
queuectl worker start --detach > /dev/null
queuectl logs import --follow
queuectl status
