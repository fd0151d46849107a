"""`Client`, for synchronous programs, on the standard library alone. Answers are plain dicts."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping

from kedge.client.environment import find_server, make_submission
from kedge.client.errors import Dropped, InDoubt, Refused
from kedge.client.events import EventCursor, EventFollower, follow
from kedge.client.reconnect import GIVE_UP_S, ReconnectPolicy, Waiter
from kedge.client.run_follower import RunFollower, RunTracker, read_messages
from kedge.client.run_output import AnswerText, LiveOutput
from kedge.client.transport import Transport, open_connection
from kedge.http.http1 import build_query, escape
from kedge.version import VERSION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any, Self

    from kedge.client.events import Event

RECENT = 50  # sessions to read first for the latest one; those of sub-agents may come before it


class Client:
    """A workspace on a server. Not safe for several threads at once: give each its own."""

    def __init__(self, transport: Transport, workspace: dict[str, Any], *, give_up_s: float = GIVE_UP_S) -> None:
        self.transport = transport
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
        """Open the workspace of `directory`. Without a host, uses the data directory's server, started if needed."""
        location = find_server(host=host, data_dir=data_dir, token=token, token_file=token_file)
        transport = Transport(location, waiter or Waiter(), client=name)
        policy = ReconnectPolicy(give_up_s=give_up_s)
        body = {"path": os.path.abspath(directory)}
        workspace = transport.call("POST", "/v1/workspaces", body, policy=policy)
        if location.is_managed and is_older(transport.server_version):
            replace_server(transport)
            workspace = transport.call("POST", "/v1/workspaces", body, policy=policy)
        return cls(transport, workspace, give_up_s=give_up_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. Submitted runs continue (P4)."""
        self.transport.close()

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Send a request below this workspace, like `call("GET", "/agent")`, until it is answered."""
        return self.transport.call(method, self.path + path, body, policy=self.new_policy())

    def call_once(self, method: str, path: str, body: object = None) -> Any:
        """As `call`, once, for a request that must not arrive twice, like an undo. Raises `InDoubt`."""
        try:
            return self.transport.request(method, self.path + path, body)
        except Dropped as error:
            raise InDoubt(error) from error

    def models(self, env: Mapping[str, str] | None = None) -> dict[str, Any]:
        """List the models for a shell with the variables `env`, or for the server's own. Only names are sent."""
        from kedge.protocol.environment import HEADER, encode_environment

        headers = {} if env is None else {HEADER: encode_environment(env)}
        return self.transport.call("GET", f"{self.path}/models", policy=self.new_policy(), headers=headers)

    def new_policy(self) -> ReconnectPolicy:
        return ReconnectPolicy(give_up_s=self._give_up_s)

    def sessions(self, search: str | None = None, *, limit: int | None = None) -> list[dict[str, Any]]:
        """List sessions, the most recently used first."""
        return self.call("GET", f"/sessions{build_query(q=search, limit=limit)}")["sessions"]

    def latest_session(self) -> dict[str, Any] | None:
        """The most recently used session that is not a sub-agent's."""
        for limit in (RECENT, None):
            for session in self.sessions(limit=limit):
                if not session.get("parent_session_id"):
                    return session
        return None

    def create_session(self, title: str = "") -> dict[str, Any]:
        return self.call("POST", "/sessions", {"title": title})

    def messages(self, session_id: str) -> Iterator[dict[str, Any]]:
        """Read the messages of a session, oldest first."""
        return read_messages(self._get, f"{self.path}/sessions/{escape(session_id)}")

    def _get(self, target: str) -> Any:
        return self.transport.call("GET", target, policy=self.new_policy())

    def submit(self, prompt: str, *, session_id: str, run_id: str | None = None, **options: Any) -> dict[str, Any]:
        """Submit a prompt; it is durable when this returns (P1). `options` are the fields of `POST W/agent`."""
        return self.call("POST", "/agent", make_submission(prompt, session_id, run_id, options))

    def run(
        self, prompt: str, *, session_id: str | None = None, run_id: str | None = None, **options: Any
    ) -> FollowedRun:
        """Make a run, in a new session if none is given. It is submitted when its text or end is first asked for."""
        submission = make_submission(prompt, session_id or self.create_session()["id"], run_id, options)
        return FollowedRun(RunFollower(self.transport, RunTracker(self.path, submission), self.new_policy()))

    def events(
        self, *, after: int | None = None, log_id: str | None = None, session_id: str | None = None
    ) -> Generator[Event]:
        """Yield the workspace's events without end: from now on, or all after a `seq`.

        After a `stream_reset` (P10) events are missing: read what you need again.
        """
        cursor = EventCursor(after=after, log_id=log_id, session_id=session_id)
        events: list[Event] = []
        follower = EventFollower(self.path, cursor, lambda event, _: events.append(event), self.new_policy())
        for _ in follow(self.transport, follower):
            yield from (event for event in events if event["type"] not in ("connected", "heartbeat"))
            events.clear()

    def cancel(self, *, run_id: str | None = None, session_id: str | None = None) -> list[str]:
        """Cancel one run, or all that a session has accepted so far (P6); returns the ids of the canceled runs."""
        if run_id is not None:
            run = self.call("POST", f"/runs/{escape(run_id)}/cancel")
            return [run_id] if run["cancel_requested"] else []
        if session_id is None:
            raise ValueError("pass run_id or session_id")
        return self.call("POST", f"/agent/sessions/{escape(session_id)}/cancel")["cancelled"]

    def switch_mode(self, run_id: str, mode: str) -> dict[str, Any]:
        """Switch the mode of an open run and of all that share its turn, from the next call of a tool on."""
        return self.call("POST", f"/runs/{escape(run_id)}/mode", {"mode": mode})

    def queue(self, session_id: str) -> list[dict[str, Any]]:
        """List the queued prompts of a session; the first one starts next (P5)."""
        return self.call("GET", f"/agent/sessions/{escape(session_id)}/prompts/list")["prompts"]

    def move(self, run_id: str, *, session_id: str, before: str | None = None) -> list[dict[str, Any]]:
        """Move a queued prompt in front of another one, or to the end; returns the queue."""
        body = {"run_id": run_id, "before": before}
        return self.call("POST", f"/agent/sessions/{escape(session_id)}/prompts/move", body)["prompts"]

    def promote(self, run_id: str, *, session_id: str, on_busy: str = "steer") -> dict[str, Any]:
        """Send a queued prompt into the running turn, or have it interrupt that turn (`on_busy="interrupt"`).

        Raises `InDoubt`.
        """
        body = {"run_id": run_id, "on_busy": on_busy}
        return self.call_once("POST", f"/agent/sessions/{escape(session_id)}/prompts/promote", body)

    def undo(
        self,
        session_id: str,
        message_id: str | None = None,
        *,
        restore: str = "both",
        include_unsure: bool = False,
        dry_run: bool = False,
    ) -> dict[str, Any]:
        """Restore files and conversation, or one of them, to before a message. Raises `InDoubt`."""
        body = {"restore": restore, "include_unsure": include_unsure, "dry_run": dry_run}
        body |= {} if message_id is None else {"message_id": message_id}
        return self.call_once("POST", f"/sessions/{escape(session_id)}/undo", body)

    def redo(self, session_id: str, *, dry_run: bool = False) -> dict[str, Any]:
        """Revert the last undo of a session. Raises `InDoubt`."""
        return self.call_once("POST", f"/sessions/{escape(session_id)}/redo", {"dry_run": dry_run})

    def grants(self, session_id: str) -> list[dict[str, Any]]:
        """List what was allowed for the rest of a session."""
        return self.call("GET", f"/sessions/{escape(session_id)}/grants")["grants"]

    def revoke(self, grant_id: str, *, session_id: str) -> None:
        """Revoke what was allowed for a session, from its next run on. Raises `InDoubt`."""
        self.call_once("DELETE", f"/sessions/{escape(session_id)}/grants/{escape(grant_id)}")


class FollowedRun:
    """Iterate to get the run's text as it is written; then `outcome` is the payload of its `run_complete`."""

    def __init__(self, follower: RunFollower) -> None:
        self.run_id = follower.tracker.view.run_id
        self.outcome: dict[str, Any] | None = None
        self._follower = follower

    def __iter__(self) -> Iterator[str]:
        view = self._follower.tracker.view
        output, text = LiveOutput(view.messages), AnswerText()
        for _ in self._follower.steps():
            yield from text.take(output.new_pieces())
        assert view.end is not None
        yield from text.take(output.finish(view.end))
        self.outcome = view.end

    def wait(self) -> dict[str, Any]:
        """Follow the run to its end and return `outcome`."""
        for _ in self:
            pass
        assert self.outcome is not None
        return self.outcome


def is_older(version: str | None) -> bool:
    """Whether a server of that version is to be replaced by one of this version."""
    return bool(version) and _parse_version(version) < _parse_version(VERSION)


def replace_server(transport: Transport) -> None:
    """Stop an idle server and start one of this version. A busy one is left alone."""
    from kedge.client import server_process

    location = transport.location
    transport.close()
    old = Transport(location.as_unmanaged(), transport.waiter, client=transport.client)
    with server_process.hold_spawn_lock(location.data_dir):
        try:
            # Another client may have replaced it while we waited for the lock.
            old.request("GET", "/v1/health")
            if not is_older(old.server_version):
                return
            old.request("POST", "/v1/control", {"command": "shutdown_if_idle"})
        except Refused:
            return
        except Dropped:
            pass  # stopped already
        finally:
            old.close()
        server_process.wait_until_free(location.data_dir, transport.waiter)
        server_process.start_server_locked(location, transport.waiter, lambda: open_connection(location)).close()


def _parse_version(version: str) -> list[int]:
    return [int(number) for number in version.split(".") if number.isdecimal()]
