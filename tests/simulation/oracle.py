"""What must hold after every step, in plain words: from the changes that were committed, and from calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from holdfast import events as e
from holdfast.config import SETTINGS
from holdfast.context import Attempt
from holdfast.core.job import FINISHED, Status
from tests.simulation.clock import PRESENT
from tests.simulation.database import Change, Database, Row, Violation
from tests.simulation.process import Process, declared_by_code

if TYPE_CHECKING:
    from tests.simulation.world import World

ROUNDING = 1e-4
"""Instants are stored in microseconds."""

_CLAIMED = {e.JobClaimed: "claim", e.JobReleased: "release", e.JobPromoted: "promote"}
_STATUS = {
    e.JobCompleted: Status.COMPLETED,
    e.JobRetrying: Status.SCHEDULED,
    e.JobFailed: Status.FAILED,
    e.JobCancelled: Status.CANCELLED,
}


def names_of(type: str) -> list[str]:
    """The names whose settings hold for a type, in the order in which they are asked."""
    base = type.split(":")[0]
    return [type, base, ""] if base != type else [type, ""]


class Rules:
    """The settings as the interface explains them, resolved slowly and plainly."""

    def __init__(self, database: Database, code: int, defaults: dict[str, Any]) -> None:
        self._database = database
        self._code = code
        self._defaults = defaults

    def resolve(self, setting: str, type: str) -> tuple[str, Any]:
        """Whose value holds, and the value."""
        for name in names_of(type):
            if (setting, name) in self._database.settings:
                return name, self._database.settings[setting, name]
            said = declared_by_code(self._code).get(name, {}) if name else self._defaults
            if setting in said:
                return name, said[setting]
        return "", SETTINGS[setting].default

    def is_paused(self, type: str) -> bool:
        return any(name in self._database.paused for name in names_of(type))

    def sharing(self, setting: str, name: str, rows: Sequence[Row]) -> list[Row]:
        """Those of the rows whose types have a setting from this name."""
        return [row for row in rows if self.resolve(setting, row.type)[0] == name]


class Oracle:
    """Told of everything that happens; it raises Violation."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._database = world.database
        self.rules = Rules(world.database, world.code, world.defaults)
        self.accepted: set[str] = set()
        self.claims = 0
        self.last_claim_at = 0.0
        self._outcomes: dict[tuple[int, int], str] = {}
        self._happened: set[tuple[Any, ...]] = set()
        self._starts: dict[int, set[int]] = {}
        """Versions of the attempts whose handlers were called since a person last retried the job."""
        self._retried: dict[int, int] = {}
        self._called: set[tuple[int, int]] = set()
        """All attempts whose handlers were ever called."""
        self._alone: set[tuple[int, int]] = set()
        """Claims of jobs that had lost two workers in a row."""
        self._taken: dict[str, list[float]] = {}
        """When jobs under each rate limit started, by the database's clock without its steps back."""
        self._stood_under: Any = None
        self.moved_on = 0.0
        self.jumped_at = -1e9
        """When a clock last stepped."""

    # Commits.

    def committed(self, changes: Sequence[Change]) -> None:
        claimed: list[Row] = []
        for change in changes:
            self._happened.add((change.verb, change.row.id, change.worker_id))
            self._happened.add((change.status, change.row.id))
            if change.verb == "enqueue":
                self.accepted.add(change.row.id)
            elif change.verb == "claim":
                claimed.append(change.row)
                if change.row.is_suspect:
                    self._alone.add((change.row.seq, change.version))
            elif change.verb == "retry":
                self._starts.pop(change.row.seq, None)
                self._retried[change.row.seq] = change.version
            elif change.worker_id is not None:
                self._ended(change)
        stands_under = self._database.version
        if stands_under != self._stood_under:
            self._stood_under = stands_under
            self._taken.clear()
        if claimed:
            self.claims += len(claimed)
            self.last_claim_at = self._world.now
            self._check_limits(claimed)

    def _ended(self, change: Change) -> None:
        name = change.row.seq, change.version
        if name in self._outcomes:
            raise Violation(f"{change.row.id}: {change.verb} after {self._outcomes[name]} of one attempt")
        self._outcomes[name] = change.verb
        self._check_silence(change)
        has_started = name in self._called
        if change.is_given_back:
            self._starts.get(change.row.seq, set()).discard(change.version)
            if has_started and change.verb == "reap":
                self._check_nobody_knew(change)
        elif not has_started and name not in self._alone and change.verb in ("complete", "fail", "reap"):
            raise Violation(f"{change.row.id}: {change.verb} charges an attempt that has not started")

    def _check_silence(self, change: Change) -> None:
        """Nobody takes a job from a worker that has renewed it within the last heartbeat."""
        if change.verb == "reap" and isinstance(PRESENT.machine, Process):
            silence = self._world.now - change.renewed_at
            if silence < PRESENT.machine.dispatcher.lease_settings().heartbeat_seconds - ROUNDING:
                raise Violation(f"{change.row.id}: reaped {silence:.3f} s after it was renewed")

    def _check_nobody_knew(self, change: Change) -> None:
        """An attempt that had started was given back: by a reaper on another host, which can't tell."""
        reaper = PRESENT.machine
        worker = next(process for process in self._world.processes if process.id == change.worker_id)
        if change.row.has_started or (isinstance(reaper, Process) and reaper.host == worker.host):
            raise Violation(f"{change.row.id}: reap gives back an attempt that had started")

    def _check_limits(self, claimed: Sequence[Row]) -> None:
        running = list(self._database.running())
        for type in {row.type for row in claimed}:
            if self.rules.is_paused(type):
                raise Violation(f"{type} is paused, and a job of it was claimed")
            name, size = self.rules.resolve("max_running", type)
            if size and len(self.rules.sharing("max_running", name, running)) > size:
                raise Violation(f"more than {size} jobs run under max_running of {name!r}")
        for row in claimed:
            name, size = self.rules.resolve("group_concurrency", row.type)
            together = [r for r in running if r.group == row.group]
            if (
                size
                and row.group is not None
                and len(self.rules.sharing("group_concurrency", name, together)) > size
            ):
                raise Violation(f"more than {size} jobs of {row.group!r} run under the limit of {name!r}")
            self._check_rate(row)
        self._check_nothing_is_hoarded(claimed)

    def _check_nothing_is_hoarded(self, claimed: Sequence[Row]) -> None:
        """What others could start, a worker claims only as far as it has slots of that name."""
        process = PRESENT.machine
        assert isinstance(process, Process)
        slots = process.dispatcher._slots
        present = [attempt.claim.type for attempt in (*slots.running(), *slots.held())]
        present += [row.type for row in claimed]
        for type in {row.type for row in claimed if self._is_limited(row.type)}:
            name, size = self.rules.resolve("concurrency", type)
            limited = [t for t in present if self._is_limited(t)]
            if sum(self.rules.resolve("concurrency", t)[0] == name for t in limited) > size:
                raise Violation(f"{process.id} holds jobs of {type} under limits without a slot for them")

    def _is_limited(self, type: str) -> bool:
        return any(self.rules.resolve(name, type)[1] for name in ("max_running", "rate_limit"))

    def _check_rate(self, row: Row) -> None:
        name, rate = self.rules.resolve("rate_limit", row.type)
        if not rate:
            return
        starts = self._taken.setdefault(name, [])
        starts.append(self.moved_on)
        for count, since in enumerate(reversed(starts), 1):
            if count > rate * (self.moved_on - since) + max(1.0, rate) + ROUNDING:
                took = self.moved_on - since
                raise Violation(f"{count} starts in {took:.3f} s under the rate {rate} of {name!r}")

    # Handlers.

    def called(self, process: Process, attempt: Attempt) -> None:
        """A handler is called."""
        seq, version = attempt.name
        row = self._database.rows[seq]
        where = f"{row.id} attempt {attempt.claim.attempts} on {process.id}"
        self._world.trace("handler of", where)
        if process.is_dead:
            raise Violation(f"{where}: a dead process calls a handler")
        if not process.is_ours(attempt):
            raise Violation(f"{where}: its lease is over by the worker's own clock")
        is_held = self._database.owns(seq, version, process.id) is not None
        if not is_held and self._world.now - self.jumped_at > 30.0:
            raise Violation(f"{where}: somebody else has taken the job ({row.status} {row.version})")
        if version > self._retried.get(seq, 0):
            starts = self._starts.setdefault(seq, set())
            if version in starts:
                raise Violation(f"{where}: started twice")
            starts.add(version)
            if attempt.name in self._outcomes:
                starts.discard(version)  # its end is written already, and it was charged or given back then
            if len(starts) > (row.max_attempts or 0):
                raise Violation(f"{where}: {len(starts)} starts of {row.max_attempts}")
        self._called.add(attempt.name)
        process.running[attempt] = process.slots_under.pop(attempt)
        self._check_slots(process, where)

    def _check_slots(self, process: Process, where: str) -> None:
        beside = [attempt for attempt in process.running if not attempt.written_off]
        if len(beside) > 1 and any(attempt.name in self._alone for attempt in beside):
            raise Violation(f"{where}: it runs beside a job that has to run alone")
        settings = process.dispatcher.lease_settings()
        if any(under is not settings for under in process.running.values()):
            return  # what runs started when other settings held
        if len(process.running) > settings.get("concurrency"):
            raise Violation(f"{where}: {len(process.running)} run in one process")
        used = Counter(settings.limits(attempt.claim.type).slots for attempt in process.running)
        for limit, count in used.items():
            if count > limit.size:
                raise Violation(f"{where}: {count} run in {limit.size} slots of {limit.name!r}")

    def returned(self, process: Process, attempt: Attempt) -> None:
        process.running.pop(attempt, None)

    # Announcements.

    def told(self, process: Process, event: e.Event) -> None:
        kind = type(event)
        if isinstance(event, e.JobEvent):
            self._world.trace(process.id, "tells", kind.__name__, event.job_id)
        if kind in _CLAIMED and isinstance(event, e.JobEvent):
            worker = None if kind is e.JobPromoted else process.id
            self._require((_CLAIMED[kind], event.job_id, worker), event)
        elif kind in _STATUS and isinstance(event, e.JobEvent):
            self._require((_STATUS[kind], event.job_id), event)

    def _require(self, what: tuple[Any, ...], event: e.Event) -> None:
        if what not in self._happened:
            raise Violation(f"announced, but never committed: {event}")

    def left(self, process: Process) -> None:
        """A worker has shut down in order: it holds nothing, unless it could not write."""
        self._world.trace(process.id, "has left")

    # The end.

    def startable(self) -> list[Row]:
        """Jobs of which the first could start now, if a worker had a slot for it."""
        database, rules = self._database, self.rules
        running = list(database.running())
        found = []
        for row in database.pending():
            if rules.is_paused(row.type) or row.is_suspect:
                continue
            name, size = rules.resolve("max_running", row.type)
            if size and len(rules.sharing("max_running", name, running)) >= size:
                continue
            name, size = rules.resolve("group_concurrency", row.type)
            together = [r for r in running if r.group == row.group]
            is_grouped = row.group is not None and size
            if is_grouped and len(rules.sharing("group_concurrency", name, together)) >= size:
                continue
            name, rate = rules.resolve("rate_limit", row.type)
            bucket = database.buckets.get(name)
            if rate and bucket is not None and not bucket.refill(rate, database.now()).available():
                continue
            found.append(row)
        return found

    def check_end(self) -> None:
        rows = self._database.ids
        lost = self.accepted - rows.keys()
        if lost:
            raise Violation(f"lost: {sorted(lost)}")
        left = [row for row in rows.values() if row.status not in FINISHED]
        if left:
            raise Violation(f"not ended: {[(row.id, str(row.status), row.attempts) for row in left]}")
