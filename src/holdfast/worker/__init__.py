"""Running jobs: the dispatcher's turn, the executors, leases and maintenance. The only part that waits."""

from holdfast.worker.drain import drain
from holdfast.worker.worker import Worker

__all__ = ["Worker", "drain"]

in_handler_process = False
"""True in a process that was started to run one handler, where no worker may be started."""
