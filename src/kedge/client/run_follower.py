"""Following one run to its end: subscribe, then submit, so that no event of the run is missed.

`RunTracker` makes the decisions, for synchronous and asynchronous clients; `RunFollower` is the synchronous one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kedge.client.events import EventCursor, EventFollower, follow
from kedge.client.reconnect import ReconnectPolicy
from kedge.client.run_view import RunView
from kedge.client.transport import Transport
from kedge.http.http1 import build_query, escape

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kedge.client.events import Event
    from kedge.client.message_assembly import Growth

PAGE = 200  # messages in one answer


class RunTracker:
    """Knows what a transport has to do next for a run. Does no I/O."""

    def __init__(self, workspace_path: str, submission: dict[str, Any]) -> None:
        self.workspace_path = workspace_path
        self.submission = submission
        self.view = RunView(submission["run_id"])
        self.cursor = EventCursor(session_id=submission["session_id"])
        self.receipt: dict[str, Any] | None = None
        self.listen: Callable[[Event, bytes, list[Growth]], None] | None = None  # gets every event of the run
        self._is_reset = False

    @property
    def needs_submit(self) -> bool:
        return self.receipt is None and self.cursor.seq is not None

    @property
    def needs_reload(self) -> bool:
        return self._is_reset and self.receipt is not None

    @property
    def run_target(self) -> str:
        return f"{self.workspace_path}/runs/{escape(self.view.run_id)}"

    @property
    def session_target(self) -> str:
        return f"{self.workspace_path}/sessions/{escape(self.submission['session_id'])}"

    def accept(self, receipt: dict[str, Any]) -> None:
        """The server has accepted the run, now or earlier."""
        self.receipt = receipt
        if self.cursor.seq is not None and receipt["seq"] <= self.cursor.seq:
            self.cursor.rewind(receipt["seq"] - 1)  # older than our subscription: read it from its beginning

    def take(self, event: Event, data: bytes) -> None:
        if event["type"] == "stream_reset":
            self._is_reset = True
        elif self.view.end is None and self.view.is_about(event):
            grown = self.view.take(event)
            if self.listen:
                self.listen(event, data, grown)

    def reload(self, run: dict[str, Any], messages: list[dict[str, Any]]) -> None:
        """`run` must be read before `messages`: those of an ended run do not change any more."""
        self._is_reset = False
        self.view.reload(run, messages)


class RunFollower:
    """Submits a run and follows it to its end."""

    def __init__(self, transport: Transport, tracker: RunTracker, policy: ReconnectPolicy) -> None:
        self.tracker = tracker
        self._transport = transport
        self._policy = policy

    def steps(self) -> Iterator[None]:
        """Yield whenever something may have changed, until the run has ended."""
        tracker = self.tracker
        events = EventFollower(tracker.workspace_path, tracker.cursor, tracker.take, self._policy)
        for _ in follow(self._transport, events):
            if tracker.needs_submit:
                self.submit()
            if tracker.needs_reload:
                run = self._call("GET", tracker.run_target)
                tracker.reload(
                    run, list(read_messages(lambda target: self._call("GET", target), tracker.session_target))
                )
            yield
            if tracker.view.end is not None:
                return

    def submit(self) -> None:
        """Sent again after a lost connection, it is the same run (P3)."""
        self.tracker.accept(self._call("POST", f"{self.tracker.workspace_path}/agent", self.tracker.submission))

    def cancel(self, policy: ReconnectPolicy) -> None:
        self._transport.call("POST", f"{self.tracker.run_target}/cancel", policy=policy)

    def _call(self, method: str, target: str, body: object = None) -> Any:
        return self._transport.call(method, target, body, policy=self._policy)


def read_messages(get: Callable[[str], Any], session_target: str) -> Iterator[dict[str, Any]]:
    """Yield the messages of a session, oldest first, a page at a time."""
    after: str | None = None
    while True:
        page = get(messages_target(session_target, after))["messages"]
        yield from page
        if len(page) < PAGE:
            return
        after = page[-1]["id"]


def messages_target(session_target: str, after: str | None) -> str:
    return f"{session_target}/messages{build_query(after=after, limit=PAGE)}"
