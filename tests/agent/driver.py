"""`Driver`: the real agent on a test engine; its retries are recorded and take no time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import date
from typing import Any

from kedge.agent.agent import Agent
from kedge.agent.retry import RetryPolicy
from kedge.config.schema import AgentConfig, Config
from kedge.models.client import ModelClient
from kedge.models.keys.credentials import CREDENTIALS_FILE, Credentials
from kedge.models.selection.selector import ModelSelector
from kedge.protocol.events import AgentEvent, Event
from kedge.protocol.messages import Delta, FinishReason, Message, finish_of, text_of
from kedge.protocol.runs import RunEnd
from kedge.tools.port import Tool
from tests.support.harness import Kedge

Sleep = Callable[[float], Awaitable[None]]
KEY = "secret.of.tests.0123456789"  # in no known shape: it must be hidden because it is the key


class Driver:
    """Drives the real agent on a test engine: use as `async with Driver(…) as driver`."""

    def __init__(
        self,
        kedge: Kedge,
        base_url: str,
        *,
        sleep: Sleep | None = None,
        tools: Sequence[Tool] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.kedge = kedge
        self.config = Config(agent=AgentConfig(titles=False))  # beside the run, at any time: not in every count
        self.load_config: Callable[[Mapping[str, str]], Config] = lambda _env: self.config
        self.today = date(2031, 2, 3)
        self.delays: list[float] = []
        self.env = env or {"OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": KEY, "KEDGE_MODEL": "openai/tester"}
        self.agent = Agent(
            ModelClient(),
            environ=self.env,
            data_dir=kedge.data,
            configure=lambda _directory, env: self.load_config(env),
            tools=tools,
            selector=ModelSelector(Credentials(kedge.data / CREDENTIALS_FILE)),  # nothing of this machine
            retry=RetryPolicy(sleep=sleep or self._sleep, random=lambda: 1.0),
            today=lambda: self.today,
        )

    async def __aenter__(self) -> Driver:
        self.kedge.turns.update(self.agent.turns)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.agent.close()

    async def ask(self, prompt: str, session_id: str | None = None, **fields: Any) -> RunEnd:
        receipt = await self.kedge.send(session_id or await self.kedge.session(), prompt, **fields)
        return await self.kedge.end(receipt.run_id)

    async def assistant_messages(self, session_id: str) -> list[tuple[str, FinishReason | None]]:
        messages = [m for m in await self.kedge.messages(session_id) if m.role == "assistant"]
        return [(text_of(message.parts), reason_of(message)) for message in messages]

    async def shown(self, text: str) -> None:
        """Until a delta with this text was seen by whoever watches."""

        def matches(event: Event) -> bool:
            return isinstance(event.payload, Delta) and event.payload.text == text

        await self.kedge.seen(matches)

    async def agent_events(self) -> list[AgentEvent]:
        return [event.payload for event in await self.kedge.log() if isinstance(event.payload, AgentEvent)]

    async def _sleep(self, delay_s: float) -> None:
        self.delays.append(delay_s)
        await asyncio.sleep(0)


def reason_of(message: Message) -> FinishReason | None:
    finish = finish_of(message.parts)
    return None if finish is None else finish.reason
