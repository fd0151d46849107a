"""The Prometheus metrics of `GET /v1/metrics`: counters since the start, and gauges of the current state."""

from __future__ import annotations

import bisect
import resource
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kedge.protocol.messages import MessageOf
from kedge.protocol.runs import OPEN_STATES, Run, RunEnd
from kedge.store.port import Committed, Store

if TYPE_CHECKING:
    from kedge.engine.engine import Engine

MAX_OPEN_RUNS = 1_000_000  # of a workspace, counted at the start
# From a commit on a fast disk to the response of a slow model.
BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Histogram:
    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS_S) + 1)
        self._sum_s = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect.bisect_left(BUCKETS_S, seconds)] += 1
        self._sum_s += seconds

    def lines(self, name: str) -> list[str]:
        total, lines = 0, [f"# TYPE {name} histogram"]
        for bound, count in zip((*BUCKETS_S, "+Inf"), self._counts, strict=True):
            total += count
            lines.append(f'{name}_bucket{{le="{bound}"}} {total}')
        return [*lines, f"{name}_sum {self._sum_s:.6f}", f"{name}_count {total}"]


class Metrics:
    def __init__(self, now: Callable[[], float]) -> None:
        self.accept = Histogram()
        self.step = Histogram()
        self.used_at = now()  # when a request or a run last ended
        self.open_requests = 0  # including streams
        self._now = now
        self._ended = {"completed": 0, "failed": 0, "cancelled": 0}
        self._open: dict[tuple[str, str], str] = {}
        self._steps: dict[str, float] = {}

    async def begin(self, store: Store) -> None:
        """Count the runs that an earlier server left open."""
        for state in await store.workspaces():
            for run_state in OPEN_STATES:
                for run in await store.runs(state.workspace.id, state=run_state, limit=MAX_OPEN_RUNS):
                    self._open[state.workspace.id, run.run_id] = run.state

    def request_began(self) -> None:
        self.open_requests += 1

    def request_ended(self) -> None:
        self.open_requests -= 1
        self.used_at = self._now()

    def observe_events(self, events: Sequence[Committed]) -> None:
        for event in events:
            match event.payload:
                case Run() as run if run.is_open:
                    self._open[event.workspace_id, run.run_id] = run.state
                case RunEnd() as end:
                    self.used_at = self._now()
                    self._open.pop((event.workspace_id, end.run_id), None)
                    self._ended["cancelled" if end.cancelled else "failed" if end.error else "completed"] += 1
                case MessageOf(role="assistant") as message:
                    self._step_changed(message.id, event.is_open)
                case _:
                    pass

    async def text(self, engine: Engine) -> str:
        states = list(self._open.values())
        feeds = engine.feeds.all()
        lines = [
            "# TYPE kedge_runs_open gauge",
            f'kedge_runs_open{{state="queued"}} {states.count("queued")}',
            f'kedge_runs_open{{state="running"}} {states.count("running")}',
            "# TYPE kedge_runs_ended_total counter",
            *(f'kedge_runs_ended_total{{outcome="{outcome}"}} {count}' for outcome, count in self._ended.items()),
            *self.accept.lines("kedge_accept_seconds"),
            *self.step.lines("kedge_step_seconds"),
            "# TYPE kedge_queue_length gauge",
            f"kedge_queue_length {states.count('queued')}",
            "# TYPE kedge_subscribers gauge",
            f"kedge_subscribers {sum(len(feed.cursors) for feed in feeds)}",
            "# TYPE kedge_feed_lag_events gauge",
            f"kedge_feed_lag_events {max((feed.lag for feed in feeds), default=0)}",
            "# TYPE kedge_memory_bytes gauge",
            f"kedge_memory_bytes {resident_bytes()}",
            "# TYPE kedge_store_bytes gauge",
            f"kedge_store_bytes {await engine.store.size_bytes()}",
        ]
        return "\n".join(lines) + "\n"

    def _step_changed(self, message_id: str, is_open: bool) -> None:
        if is_open:
            self._steps.setdefault(message_id, self._now())
        elif (began := self._steps.pop(message_id, None)) is not None:
            self.step.observe(self._now() - began)


def resident_bytes() -> int:
    """Return the resident memory on Linux; elsewhere its peak."""
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
