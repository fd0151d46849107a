"""Titles: a small model names a session during its first run, which neither waits for it nor fails with it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Awaitable, Callable, Sequence

from kedge.agent.step import merge_usage
from kedge.agent.system_prompt import load_prompt
from kedge.engine.turn import TurnContext
from kedge.models.client import ModelClient
from kedge.models.values import Endpoint, StepRequest, TextDelta, UsageReport, compute_usage
from kedge.protocol.messages import Message, Text, text_of
from kedge.protocol.text_safety import inside_escape, provisional_title
from kedge.store.errors import ClaimLost

log = logging.getLogger(__name__)

TITLE_S = 30.0  # a title that takes longer is not worth it
MAX_TITLE_CHARS = 80  # fits a line of a list, also in languages with long words
MAX_REQUEST_CHARS = 2_000  # of the prompt: its beginning says what it is about
MAX_OUTPUT_TOKENS = 1_000  # includes the reasoning of a reasoning model
MAX_ANSWER_CHARS = 4_000  # a longer answer is cut off

_QUOTES = "\"'`*_#«»“”„\u2018\u2019 \t"
_LABEL = re.compile(r"^(?:session |conversation )?title\s*:\s*", re.I)

SelectSmall = Callable[[], Awaitable[Endpoint | None]]
"""Returns the model that writes titles; None if no model should."""


class Titles:
    """Owns the tasks that write titles; closing it cancels them."""

    def __init__(self, models: ModelClient, *, timeout_s: float = TITLE_S) -> None:
        self._models = models
        self._timeout_s = timeout_s
        self.tasks: set[asyncio.Task[None]] = set()

    def start(self, ctx: TurnContext, history: Sequence[Message], select_small: SelectSmall) -> None:
        """Start naming the session of this turn, unless it has a title already."""
        if ctx.run.kind != "prompt":
            return
        prompts = (text_of(message.parts) for message in history if message.role == "user")
        prompt = next(filter(None, prompts), ctx.run.prompt)  # skips shell commands
        task = asyncio.get_running_loop().create_task(self._write_title(ctx, prompt, select_small))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def close(self) -> None:
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _write_title(self, ctx: TurnContext, prompt: str, select_small: SelectSmall) -> None:
        """The error boundary: a missing title is not an error, so nothing is raised."""
        try:
            async with asyncio.timeout(self._timeout_s):
                session = await ctx.session()
                is_unnamed = session.title in ("", provisional_title(prompt))
                if session.parent_session_id is not None or not is_unnamed or not prompt.strip():
                    return
                endpoint = await select_small()
                if endpoint is None:
                    return
                if title := clean_title(await self._ask_model(ctx, endpoint, prompt)):
                    await ctx.retitle(session.title, title)
        except Exception:
            log.debug("no title for session %s", ctx.run.session_id, exc_info=True)

    async def _ask_model(self, ctx: TurnContext, endpoint: Endpoint, prompt: str) -> str:
        request = _request(ctx, endpoint, prompt)
        pieces: list[str] = []
        report: UsageReport | None = None
        async with contextlib.aclosing(self._models.stream(endpoint, request)) as groups:
            async for deltas in groups:
                pieces += [delta.text for delta in deltas if isinstance(delta, TextDelta)]
                for delta in deltas:
                    report = merge_usage(report, delta) if isinstance(delta, UsageReport) else report
                if sum(len(piece) for piece in pieces) > MAX_ANSWER_CHARS:
                    break
        text = "".join(pieces)
        with contextlib.suppress(ClaimLost):  # the run has ended, and its usage is final
            chars = len(request.system) + len(prompt)
            await ctx.add_usage(compute_usage(report, endpoint.info, chars, len(text)))
        return text


def clean_title(text: str) -> str:
    """Return one line without decoration; empty if there is no text."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip(_QUOTES)]
    if not lines:
        return ""
    line = _LABEL.sub("", lines[0].strip(_QUOTES)).strip(_QUOTES)
    line = " ".join(inside_escape(line).split()).rstrip(".")
    return line if len(line) <= MAX_TITLE_CHARS else f"{line[: MAX_TITLE_CHARS - 1].rstrip()}…"


def _request(ctx: TurnContext, endpoint: Endpoint, prompt: str) -> StepRequest:
    message = Message(
        id=f"{ctx.run.run_id}-title",
        session_id=f"{ctx.run.session_id}-title",  # not the session's own: conversations are cached by this id
        run_id=ctx.run.run_id,
        role="user",
        parts=[Text(prompt[:MAX_REQUEST_CHARS])],
        created_at=0.0,
    )
    effort = "minimal" if endpoint.info.reasoning else None
    return StepRequest(
        system=load_prompt("title"), history=[message], max_output_tokens=MAX_OUTPUT_TOKENS, effort=effort
    )
