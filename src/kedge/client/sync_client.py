"""`Client`: the public face for synchronous programs, on the standard library alone. Answers are plain dicts."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping

from kedge.client.errors import Dropped, InDoubt, Refused
from kedge.client.event_cursor import Story
from kedge.client.http1 import escape, query
from kedge.client.reconnect import GIVE_UP_S, Reconnect
from kedge.client.run_follower import RunFollower, follow
from kedge.client.run_output import LiveTeller, Speech
from kedge.client.run_view import PAGE, RunCore
from kedge.client.server_location import find
from kedge.client.submission import submission
from kedge.client.transport import Wire, connected
from kedge.client.waiter import Waiter
from kedge.version import VERSION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any, Self

    from kedge.client.event_cursor import Event

LATEST = 50  # sessions that are looked at first for the one used last; sub-agents' may come before it


class Client:
    """A workspace on a server. Not for several threads at once: give each its own."""

    def __init__(self, wire: Wire, workspace: dict[str, Any], *, give_up_s: float = GIVE_UP_S) -> None:
        self.wire = wire
        self.workspace = workspace
        self.path = f"/v1/workspaces/{workspace['id']}"
        self._give_up_s = give_up_s

    @classmethod
    def connect(
        cls,
        directory: str = ".",
        *,
        host: str | None = None,
        data_dir: str | None = None,
        token: str | None = None,
        token_file: str | None = None,
        name: str = "python",
        waiter: Waiter | None = None,
        give_up_s: float = GIVE_UP_S,
    ) -> Self:
        """Join the workspace of `directory`. Without a host the data directory's server is found, or started."""
        endpoint = find(host=host, data_dir=data_dir, token=token, token_file=token_file)
        wire = Wire(endpoint, waiter or Waiter(), client=name)
        policy = Reconnect(give_up_s=give_up_s)
        body = {"path": os.path.abspath(directory)}
        workspace = wire.call("POST", "/v1/workspaces", body, policy=policy)
        if endpoint.is_ours and is_older(wire.server_version) and replace(wire):
            workspace = wire.call("POST", "/v1/workspaces", body, policy=policy)
        return cls(wire, workspace, give_up_s=give_up_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Leave. What was submitted goes on (P4)."""
        self.wire.close()

    def call(self, method: str, path: str, body: object = None) -> Any:
        """A request below this workspace, like `call("GET", "/agent")`."""
        return self.wire.call(method, self.path + path, body, policy=self.policy())

    def call_once(self, method: str, path: str, body: object = None) -> Any:
        """As `call`, for what must not arrive twice, like an undo. Raises `InDoubt`."""
        try:
            return self.wire.request(method, self.path + path, body)
        except Dropped as error:
            raise InDoubt(error) from error

    def models(self, env: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Which models there are for a shell with these variables, or for the server's own; keys do not leave it."""
        from kedge.protocol.environment import HEADER, header_of

        headers = {} if env is None else {HEADER: header_of(env)}
        return self.wire.call("GET", f"{self.path}/models", policy=self.policy(), headers=headers)

    def policy(self) -> Reconnect:
        return Reconnect(give_up_s=self._give_up_s)

    def sessions(self, search: str | None = None, *, limit: int | None = None) -> list[dict[str, Any]]:
        """Newest activity first."""
        return self.call("GET", f"/sessions{query(q=search, limit=limit)}")["sessions"]

    def latest_session(self) -> dict[str, Any] | None:
        """The one that was used last, and is not a sub-agent's."""
        for limit in (LATEST, None):
            for session in self.sessions(limit=limit):
                if not session.get("parent_session_id"):
                    return session
        return None

    def create_session(self, title: str = "") -> dict[str, Any]:
        return self.call("POST", "/sessions", {"title": title})

    def messages(self, session_id: str) -> Iterator[dict[str, Any]]:
        """Of a session, oldest first."""
        after: str | None = None
        while True:
            target = f"/sessions/{escape(session_id)}/messages{query(after=after, limit=PAGE)}"
            page = self.call("GET", target)["messages"]
            yield from page
            if len(page) < PAGE:
                return
            after = page[-1]["id"]

    def submit(self, prompt: str, *, session_id: str, run_id: str | None = None, **options: Any) -> dict[str, Any]:
        """Hand in a prompt; when this returns, it is durable (P1). `options` are the fields of `POST W/agent`."""
        return self.call("POST", "/agent", submission(prompt, session_id, run_id, options))

    def run(self, prompt: str, *, session_id: str | None = None, run_id: str | None = None, **options: Any) -> Running:
        """A prompt, in a new session if none is named. It is sent when its text or its end is first asked for."""
        body = submission(prompt, session_id or self.create_session()["id"], run_id, options)
        return Running(RunFollower(self.wire, RunCore(self.path, body), self.policy()))

    def events(
        self, *, after: int | None = None, log_id: str | None = None, session_id: str | None = None
    ) -> Generator[Event]:
        """The workspace's story without end: from now on, or everything after a `seq`.

        After a `stream_reset` (P10) something is missing: read what matters again.
        """
        story = Story(after=after, log_id=log_id, session_id=session_id)
        heard: list[Event] = []
        for _ in follow(self.wire, self.path, story, lambda event, _: heard.append(event), self.policy()):
            yield from (event for event in heard if event["type"] not in ("connected", "heartbeat"))
            heard.clear()

    def cancel(self, *, run_id: str | None = None, session_id: str | None = None) -> list[str]:
        """Cancel one run, or all that a session has accepted so far (P6); returns what was hit."""
        if run_id is not None:
            run = self.call("POST", f"/runs/{escape(run_id)}/cancel")
            return [run_id] if run["cancel_requested"] else []
        if session_id is None:
            raise ValueError("say what to cancel: run_id or session_id")
        return self.call("POST", f"/agent/sessions/{escape(session_id)}/cancel")["cancelled"]


class Running:
    """A run being followed: iterating gives its text as it is written; then `outcome` is the end (`run_complete`)."""

    def __init__(self, follower: RunFollower) -> None:
        self.run_id = follower.core.view.run_id
        self.outcome: dict[str, Any] | None = None
        self._follower = follower

    def __iter__(self) -> Iterator[str]:
        view = self._follower.core.view
        teller, speech = LiveTeller(view.messages), Speech()
        for _ in self._follower.steps():
            yield from speech.of(teller.news())
        assert view.end is not None
        yield from speech.of(teller.finish(view.end))
        self.outcome = view.end

    def wait(self) -> dict[str, Any]:
        """The end, when it has come."""
        for _ in self:
            pass
        assert self.outcome is not None
        return self.outcome


def is_older(version: str | None) -> bool:
    """Whether a server of that version should make room for one of ours."""
    return bool(version) and _numbers(version) < _numbers(VERSION)


def replace(wire: Wire) -> bool:
    """Let an older server go if it has nothing to do; whether it went. A busy one is used as it is."""
    from kedge.client import server_process

    endpoint = wire.endpoint
    wire.close()
    there = Wire(endpoint.as_found(), wire.waiter, client=wire.client)
    with server_process.only_one(endpoint.data_dir):
        try:
            # Somebody else may have replaced it while we waited for the lock.
            there.request("GET", "/v1/health")
            if not is_older(there.server_version):
                return True
            there.request("POST", "/v1/control", {"command": "shutdown_if_idle"})
        except Refused:
            return False
        except Dropped:
            pass  # gone already
        finally:
            there.close()
        server_process.await_free(endpoint.data_dir, wire.waiter)
        server_process.start_locked(endpoint, wire.waiter, lambda: connected(endpoint)).close()
        return True


def _numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".") if number.isdecimal()]
