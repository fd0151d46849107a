"""`Api`: the interface's requests to the server. Errors are those of `kedge.client.errors`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from kedge.client.environment import caller_environment
from kedge.client.errors import Refused
from kedge.client.reconnect import ReconnectPolicy
from kedge.http.http1 import build_query, escape
from kedge.protocol.requests import AnswerReceipt
from kedge.protocol.runs import QueuedPrompt, Receipt
from kedge.protocol.sessions import Job, JobList, JobOutput

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kedge.client import AsyncClient
    from kedge.protocol.api import (
        ConfigAnswer,
        CredentialList,
        Offered,
        SessionContext,
        SessionGrants,
        StoredCredential,
    )
    from kedge.protocol.messages import Message
    from kedge.protocol.requests import PermissionAction
    from kedge.protocol.runs import Attachment, Mode, OnBusy, Run
    from kedge.protocol.sessions import ListedSession, Session
    from kedge.protocol.skills import SkillList, UserCommand

T = TypeVar("T")
SUBMIT_S = 15.0  # then the text goes back into the editor


class PermissionAnswer(NamedTuple):
    action: PermissionAction
    reason: str = ""  # of a denial: with it the turn goes on


class Api:
    """`ready` returns the client as soon as there is a server."""

    def __init__(self, ready: Callable[[], Awaitable[AsyncClient]]) -> None:
        self._ready = ready

    async def call(self, method: str, path: str, body: object = None, *, type: type[T]) -> T:
        """Send a request below this workspace's path."""
        return await (await self._ready()).call(method, path, body, type=type)

    async def call_once(self, method: str, path: str, body: object = None, *, type: type[T]) -> T:
        """As `call`, for a request that must not be repeated."""
        return await (await self._ready()).call_once(method, path, body, type=type)

    async def call_server(self, method: str, path: str, body: object = None, *, type: type[T]) -> T:
        """Send a request outside any workspace, like `/v1/version`."""
        from kedge.client.async_client import convert_answer

        client = await self._ready()
        return convert_answer(await client.transport.call(method, path, body, policy=client.new_policy()), type)

    # sessions

    async def create_session(self, title: str = "") -> Session:
        return await (await self._ready()).create_session(title)

    async def sessions(self, search: str = "") -> list[Session]:
        return await (await self._ready()).sessions(search or None, limit=200)

    async def all_sessions(self) -> list[ListedSession]:
        """Return the sessions of all directories, the last used first."""
        from kedge.protocol.api import ListedSessions

        return (await self.call_server("GET", "/v1/sessions?limit=200", type=ListedSessions)).sessions

    async def latest_session(self) -> Session | None:
        return await (await self._ready()).latest_session()

    async def messages(self, session_id: str) -> list[Message]:
        return await (await self._ready()).messages(session_id)

    async def rename(self, session_id: str, title: str) -> None:
        await self.call("PATCH", f"/sessions/{escape(session_id)}", {"title": title}, type=dict[str, Any])

    async def delete(self, session_id: str) -> None:
        await self.call("DELETE", f"/sessions/{escape(session_id)}", type=dict[str, Any])

    # runs

    async def submit(
        self,
        session_id: str,
        prompt: str,
        *,
        run_id: str,
        attachments: Sequence[Attachment] = (),
        mode: Mode | None = None,
        model: str | None = None,
        on_busy: OnBusy = "queue",
    ) -> Receipt:
        """Submit a prompt; the same `run_id` again is the same run (P3)."""
        body: dict[str, Any] = {
            "session_id": session_id,
            "prompt": prompt,
            "run_id": run_id,
            "on_busy": on_busy,
            "permissions": "ask",
            "env": caller_environment(),
            "attachments": list(attachments),
            "options": {"mode": mode} if mode else {},
        }
        if model:
            body["model"] = model
        return await self._post_run("/agent", body)

    async def shell(self, session_id: str, command: str, *, run_id: str, on_busy: OnBusy = "queue") -> Receipt:
        body = {"command": command, "run_id": run_id, "on_busy": on_busy, "env": caller_environment()}
        return await self._post_run(f"/agent/sessions/{escape(session_id)}/shell", body)

    async def summarize(self, session_id: str, *, run_id: str) -> Receipt:
        body = {"run_id": run_id, "env": caller_environment()}
        return await self._post_run(f"/agent/sessions/{escape(session_id)}/summarize", body)

    async def cancel(self, session_id: str) -> list[str]:
        return await (await self._ready()).cancel(session_id=session_id)

    async def read_queued(self, run: Run) -> QueuedPrompt:
        """Return a queued prompt with its attachments; without them if it is no longer queued."""
        target = f"/agent/sessions/{escape(run.session_id)}/prompts/{escape(run.run_id)}"
        try:
            return await self.call("GET", target, type=QueuedPrompt)
        except Refused:
            return QueuedPrompt(run, [])

    async def drop(self, session_id: str, run_id: str) -> None:
        """Remove a prompt from the queue."""
        target = f"/agent/sessions/{escape(session_id)}/prompts/{escape(run_id)}"
        await self.call("DELETE", target, type=dict[str, Any])

    async def move(self, session_id: str, run_id: str, before: str | None) -> None:
        """Move a queued prompt in front of another one; None: to the end."""
        target = f"/agent/sessions/{escape(session_id)}/prompts/move"
        await self.call("POST", target, {"run_id": run_id, "before": before}, type=dict[str, Any])

    async def promote(self, session_id: str, run_id: str, on_busy: OnBusy) -> None:
        """Send a queued prompt into the running turn, or interrupt that with it."""
        target = f"/agent/sessions/{escape(session_id)}/prompts/promote"
        await self.call("POST", target, {"run_id": run_id, "on_busy": on_busy}, type=dict[str, Any])

    async def switch_mode(self, run_id: str, mode: Mode) -> None:
        await self.call("POST", f"/runs/{escape(run_id)}/mode", {"mode": mode}, type=dict[str, Any])

    # answers to requests

    async def answer(self, request_id: str, answer: PermissionAnswer | list[Any]) -> AnswerReceipt:
        """Answer a permission request, or questions; an empty list skips the questions."""
        body: dict[str, Any] = {"id": request_id}
        if isinstance(answer, PermissionAnswer):
            body |= {"action": answer.action, **({"reason": answer.reason} if answer.reason else {})}
            return await self.call("POST", "/permissions/grant", body, type=AnswerReceipt)
        if answer:
            return await self.call("POST", "/questions/answer", {**body, "answers": answer}, type=AnswerReceipt)
        return await self.call("POST", "/questions/cancel", body, type=AnswerReceipt)

    async def session_grants(self, session_id: str) -> SessionGrants:
        """Return what was allowed for the rest of a session."""
        from kedge.protocol.api import SessionGrants

        return await self.call("GET", f"/sessions/{escape(session_id)}/grants", type=SessionGrants)

    async def revoke_grant(self, session_id: str, grant_id: str) -> None:
        target = f"/sessions/{escape(session_id)}/grants/{escape(grant_id)}"
        await self.call("DELETE", target, type=dict[str, Any])

    async def session_context(self, session_id: str) -> SessionContext:
        """Return what fills the context window of a session, with this shell's environment."""
        from kedge.client.async_client import convert_answer
        from kedge.protocol.api import SessionContext
        from kedge.protocol.environment import HEADER, encode_environment

        client = await self._ready()
        target = f"{client.path}/sessions/{escape(session_id)}/context"
        headers = {HEADER: encode_environment(caller_environment())}
        answer = await client.transport.call("GET", target, policy=client.new_policy(), headers=headers)
        return convert_answer(answer, SessionContext)

    async def server_version(self) -> str:
        from kedge.protocol.api import Version

        return (await self.call_server("GET", "/v1/version", type=Version)).version

    # the workspace

    async def list_models(self) -> Offered:
        """Return the models available with this shell's environment."""
        return await (await self._ready()).models(caller_environment())

    async def choose_model(self, session_id: str, model: str | None) -> None:
        await self.call("PATCH", f"/sessions/{escape(session_id)}", {"model": model}, type=dict[str, Any])

    async def choose_effort(self, session_id: str, effort: str | None) -> None:
        await self.call("PATCH", f"/sessions/{escape(session_id)}", {"effort": effort}, type=dict[str, Any])

    async def configure_model(self, model: str) -> None:
        """Set the default model in the user's own file."""
        await self.call("POST", "/config/model", {"scope": "global", "model": model}, type=dict[str, Any])

    async def credentials(self) -> CredentialList:
        from kedge.protocol.api import CredentialList

        return await self.call_server("GET", "/v1/credentials", type=CredentialList)

    async def log_in(self, provider_id: str, key: str) -> StoredCredential:
        """Let the server check an API key with its provider, and store it."""
        from kedge.protocol.api import StoredCredential

        body = {"provider_id": provider_id, "api_key": key, "env": caller_environment()}
        return await self.call_server("POST", "/v1/credentials", body, type=StoredCredential)

    async def config(self) -> ConfigAnswer:
        from kedge.protocol.api import ConfigAnswer

        return await self.call("GET", "/config", type=ConfigAnswer)

    async def set_config(self, key: str, value: str | float | bool | list[Any]) -> ConfigAnswer:
        """Set a key in the user's own file."""
        from kedge.protocol.api import ConfigAnswer

        return await self.call(
            "POST", "/config/set", {"scope": "global", "key": key, "value": value}, type=ConfigAnswer
        )

    async def remove_config(self, key: str) -> ConfigAnswer:
        """Remove a key from the user's own file."""
        from kedge.protocol.api import ConfigAnswer

        return await self.call("POST", "/config/remove", {"scope": "global", "key": key}, type=ConfigAnswer)

    async def remove_rule(self, key: str, rule: str) -> None:
        """Remove a rule from `permissions.KEY` of the user's own file."""
        name = f"permissions.{key}"
        own = [value.value for value in (await self.config()).values if value.key == name and value.layer == "user"]
        rules = cast("list[Any]", own[0]) if own and isinstance(own[0], list) else []
        left = [each for each in rules if each != rule]
        await (self.set_config(name, left) if left else self.remove_config(name))

    async def jobs(self) -> list[Job]:
        return (await self.call("GET", "/jobs", type=JobList)).jobs

    async def wait_for_jobs(self, running: Iterable[str], wait_s: float) -> list[Job]:
        """Return the jobs, as soon as others are running than these."""
        query = build_query(running=",".join(running), wait=f"{wait_s:g}")
        return (await self.call("GET", f"/jobs{query}", type=JobList)).jobs

    async def job_output(self, job_id: str, after: int | None, wait_s: float) -> JobOutput:
        """Return output of a job from that byte on, as soon as there is some; without `after`, the last of it."""
        query = build_query() if after is None else build_query(after=after, wait=f"{wait_s:g}")
        return await self.call("GET", f"/jobs/{escape(job_id)}/output{query}", type=JobOutput)

    async def kill_job(self, job_id: str) -> None:
        await self.call("POST", f"/jobs/{escape(job_id)}/kill", type=Job)

    async def files(self, search: str) -> list[str]:
        from kedge.protocol.api import Files

        return (await self.call("GET", f"/files{build_query(q=search, limit=20)}", type=Files)).files

    async def user_commands(self) -> list[UserCommand]:
        from kedge.protocol.skills import UserCommands

        return (await self.call("GET", "/commands", type=UserCommands)).commands

    async def skills(self) -> SkillList:
        from kedge.protocol.skills import SkillList

        return await self.call("GET", "/skills", type=SkillList)

    async def _post_run(self, path: str, body: dict[str, Any]) -> Receipt:
        from kedge.client.async_client import convert_answer

        client = await self._ready()
        policy = ReconnectPolicy(give_up_s=SUBMIT_S)
        return convert_answer(await client.transport.call("POST", client.path + path, body, policy=policy), Receipt)
