"""Titles: a small model names a session beside its first run, which neither waits for it nor fails with it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Awaitable, Callable, Sequence

from kedge.agent.delta_writer import merged
from kedge.agent.system_prompt import prompt_text
from kedge.engine.turn import TurnContext
from kedge.models.client import Models
from kedge.models.cost import usage_of
from kedge.models.values import Endpoint, StepRequest, TextDelta, UsageReport
from kedge.protocol.formats import provisional_title
from kedge.protocol.messages import Message, Text, text_of
from kedge.protocol.text_safety import inside_escape
from kedge.store.errors import ClaimLost

log = logging.getLogger(__name__)

TITLE_S = 30.0  # whoever takes longer has nothing short to say
MAX_TITLE_CHARS = 80  # a line of a list, also in languages with long words
MAX_REQUEST_CHARS = 2_000  # the beginning says what it is about
MAX_OUTPUT_TOKENS = 1_000  # for a model that thinks before it says five words
MAX_ANSWER_CHARS = 4_000  # one that goes on and on is not listened to

_QUOTES = "\"'`*_#«»“”„\u2018\u2019 \t"
_LABEL = re.compile(r"^(?:session |conversation )?title\s*:\s*", re.I)

Small = Callable[[], Awaitable[Endpoint | None]]
"""The model that writes titles; None: there is none that should."""


class Titles:
    """Owns the titles being written; those that are not done when it is closed are given up."""

    def __init__(self, models: Models, *, timeout_s: float = TITLE_S) -> None:
        self._models = models
        self._timeout_s = timeout_s
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, ctx: TurnContext, history: Sequence[Message], small: Small) -> None:
        """Name the session of this turn, if it has no name of its own yet."""
        if ctx.run.kind != "prompt":
            return
        prompts = (text_of(message.parts) for message in history if message.role == "user")
        asked = next(filter(None, prompts), ctx.run.prompt)  # a command is no prompt
        task = asyncio.get_running_loop().create_task(self._name(ctx, asked, small))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _name(self, ctx: TurnContext, asked: str, small: Small) -> None:
        """The boundary: a session without a title is no fault, so no fault leaves this place."""
        try:
            async with asyncio.timeout(self._timeout_s):
                session = await ctx.session()
                is_unnamed = session.title in ("", provisional_title(asked))
                if session.parent_session_id is not None or not is_unnamed or not asked.strip():
                    return
                endpoint = await small()
                if endpoint is None:
                    return
                if title := cleaned(await self._written(ctx, endpoint, asked)):
                    await ctx.retitle(session.title, title)
        except Exception:
            log.debug("no title for session %s", ctx.run.session_id, exc_info=True)

    async def _written(self, ctx: TurnContext, endpoint: Endpoint, asked: str) -> str:
        request = _request(ctx, endpoint, asked)
        pieces: list[str] = []
        report: UsageReport | None = None
        async with contextlib.aclosing(self._models.stream(endpoint, request)) as groups:
            async for deltas in groups:
                pieces += [delta.text for delta in deltas if isinstance(delta, TextDelta)]
                for delta in deltas:
                    report = merged(report, delta) if isinstance(delta, UsageReport) else report
                if sum(len(piece) for piece in pieces) > MAX_ANSWER_CHARS:
                    break
        text = "".join(pieces)
        with contextlib.suppress(ClaimLost):  # the run has ended: its sum stands
            chars = len(request.system) + len(asked)
            await ctx.add_usage(usage_of(report, endpoint.info, chars, len(text)))
        return text


def cleaned(text: str) -> str:
    """One line without decoration; empty if there is nothing in it."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip(_QUOTES)]
    if not lines:
        return ""
    line = _LABEL.sub("", lines[0].strip(_QUOTES)).strip(_QUOTES)
    line = " ".join(inside_escape(line).split()).rstrip(".")
    return line if len(line) <= MAX_TITLE_CHARS else f"{line[: MAX_TITLE_CHARS - 1].rstrip()}…"


def _request(ctx: TurnContext, endpoint: Endpoint, asked: str) -> StepRequest:
    wish = Message(
        id=f"{ctx.run.run_id}-title",
        session_id=f"{ctx.run.session_id}-title",  # another conversation: its own is remembered by its id
        run_id=ctx.run.run_id,
        role="user",
        parts=[Text(asked[:MAX_REQUEST_CHARS])],
        created_at=0.0,
    )
    effort = "minimal" if endpoint.info.reasoning else None
    return StepRequest(system=prompt_text("title"), history=[wish], max_output_tokens=MAX_OUTPUT_TOKENS, effort=effort)
