"""Following a workspace's story over as many connections as it takes, and a run in it to its end."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

from kedge.client.errors import Dropped, SpawnFailed
from kedge.client.event_cursor import Story
from kedge.client.reconnect import Reconnect
from kedge.client.run_view import PAGE, RunCore
from kedge.client.transport import Wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kedge.client.event_cursor import Event


def follow(
    wire: Wire, workspace: str, story: Story, take: Callable[[Event, bytes], None], policy: Reconnect
) -> Generator[None]:
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
    """Does what the core of a run asks for, until the run has ended."""

    def __init__(self, wire: Wire, core: RunCore, policy: Reconnect) -> None:
        self.core = core
        self._wire = wire
        self._policy = policy

    def steps(self) -> Iterator[None]:
        """Yields whenever something may have changed."""
        core = self.core
        for _ in follow(self._wire, core.workspace, core.story, core.take, self._policy):
            if core.wants_to_submit:
                self.submit()
            if core.wants_to_reread:
                self._reread()
            yield
            if core.view.end is not None:
                return

    def submit(self) -> None:
        """Sent again after a drop, it is the same run (P3)."""
        target = f"{self.core.workspace}/agent"
        self.core.accepted(self._wire.call("POST", target, self.core.submission, policy=self._policy))

    def cancel(self, policy: Reconnect) -> None:
        self._wire.call("POST", f"{self.core.run_target}/cancel", policy=policy)

    def _reread(self) -> None:
        # The run first: of one that has ended, the messages are whole.
        run = self._wire.call("GET", self.core.run_target, policy=self._policy)
        messages: list[dict[str, Any]] = []
        after: str | None = None
        while True:
            page = self._wire.call("GET", self.core.messages_target(after), policy=self._policy)["messages"]
            messages += page
            if len(page) < PAGE:
                break
            after = page[-1]["id"]
        self.core.reread(run, messages)
