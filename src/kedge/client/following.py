"""Following a workspace's story over as many connections as it takes, and a run in it to its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kedge.client.errors import Dropped, SpawnFailed
from kedge.client.policy import Reconnect
from kedge.client.story import Story, escape, query
from kedge.client.watching import RunView
from kedge.client.wire import Wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kedge.client.story import Event
    from kedge.client.text import Growth

PAGE = 200


def follow(
    wire: Wire, workspace: str, story: Story, take: Callable[[Event, bytes], None], policy: Reconnect
) -> Iterator[None]:
    """Hand every new event to `take`. Yields after each piece that came, and whenever there is time to look around.

    Drops are not seen from outside, and `take` may raise one (`Dropped`) when it finds that something is missing.
    """
    while True:
        try:
            for chunk in wire.stream(f"{workspace}/events{story.connect()}"):
                for event, data in story.feed(chunk):
                    policy.reached() if event["type"] == "connected" else policy.progressed()
                    take(event, data)
                yield
                if story.is_rewound:
                    break
        except (Dropped, SpawnFailed) as error:
            wire.back_off(policy, error)
        yield


class RunFollower:
    """One run: subscribes, submits, and follows it to its end."""

    def __init__(
        self,
        wire: Wire,
        workspace: str,
        submission: dict[str, Any],
        *,
        policy: Reconnect,
    ) -> None:
        self.view = RunView(submission["run_id"])
        self.receipt: dict[str, Any] | None = None
        self.listen: Callable[[Event, bytes, list[Growth]], None] | None = None  # hears every event of the run
        self._wire = wire
        self._workspace = workspace
        self._submission = submission
        self._policy = policy
        self._story = Story(session_id=submission["session_id"])
        self._needs_reread = False

    def steps(self) -> Iterator[None]:
        """Yields whenever something may have changed; ends with the run."""
        for _ in follow(self._wire, self._workspace, self._story, self._take, self._policy):
            if self.receipt is None and self._story.seq is not None:
                self.submit()
            if self._needs_reread and self.receipt is not None:
                self._reread()
            yield
            if self.view.end is not None:
                return

    def submit(self) -> None:
        """Sent again after a drop, it is the same run (P3)."""
        self.receipt = self._wire.call("POST", f"{self._workspace}/agent", self._submission, policy=self._policy)
        if self.receipt is not None and self._story.seq is not None and self.receipt["seq"] <= self._story.seq:
            # The run is older than our subscription: hear its story from the beginning.
            self._story.rewind(self.receipt["seq"] - 1)

    def cancel(self, policy: Reconnect) -> None:
        self._wire.call("POST", f"{self._workspace}/runs/{escape(self.view.run_id)}/cancel", policy=policy)

    def _take(self, event: Event, data: bytes) -> None:
        if event["type"] == "stream_reset":
            self._needs_reread = True
        elif self.view.end is None and self.view.is_about(event):
            grown = self.view.take(event)
            if self.listen:
                self.listen(event, data, grown)

    def _reread(self) -> None:
        messages: list[dict[str, Any]] = []
        session = f"{self._workspace}/sessions/{escape(self._submission['session_id'])}"
        after: str | None = None
        while True:
            target = f"{session}/messages{query(after=after, limit=PAGE)}"
            page = self._wire.call("GET", target, policy=self._policy)["messages"]
            messages += [message for message in page if message["run_id"] == self.view.run_id]
            if len(page) < PAGE:
                break
            after = page[-1]["id"]
        run = self._wire.call("GET", f"{self._workspace}/runs/{escape(self.view.run_id)}", policy=self._policy)
        self.view.reread(run, messages)
        self._needs_reread = False
