"""One attempt's message: deltas become parts, and every piece is shown before anything is waited for (P12)."""

from __future__ import annotations

from collections.abc import Callable

from kedge.engine.writing import MessageWriter, PartWriter
from kedge.models.values import Delta, ReasoningDelta, StepEnd, TextDelta, UsageReport
from kedge.protocol.messages import FinishReason, Reasoning, Text
from kedge.protocol.usage import Usage


class Answer:
    def __init__(self, message: MessageWriter) -> None:
        self.length = 0
        self._message = message
        self._usage: Usage | None = None
        self._reason: FinishReason = "unknown"
        self._part: PartWriter | None = None
        self._kind: type[TextDelta | ReasoningDelta] | None = None

    async def write(self, deltas: list[Delta]) -> None:
        ended: list[PartWriter] = []
        for delta in deltas:
            match delta:
                case TextDelta() | ReasoningDelta():
                    self._show(delta, ended)
                case UsageReport():
                    self._usage = Usage(
                        input_tokens=delta.input_tokens or 0,
                        output_tokens=delta.output_tokens or 0,
                        cache_read_tokens=delta.cache_read_tokens or 0,
                        cache_write_tokens=delta.cache_write_tokens or 0,
                    )
                case StepEnd(reason):
                    self._reason = reason
                case _:
                    pass
        for part in ended:
            await part.finish()

    async def finish(self, prompt_length: Callable[[], int]) -> None:
        """`prompt_length` is asked for only where the server does not count."""
        usage = self._usage or _estimated(prompt_length(), self.length)
        await self._message.finish(self._reason, usage=usage)

    async def interrupt(self, why: str) -> None:
        """The attempt failed: what was shown stays, and is not the answer."""
        await self._message.finish("interrupted", message=why, usage=self._usage)

    def _show(self, delta: TextDelta | ReasoningDelta, ended: list[PartWriter]) -> None:
        if self._part is None or self._kind is not type(delta):
            if self._part is not None:
                ended.append(self._part)
            self._kind = type(delta)
            self._part = self._message.open(Text("") if isinstance(delta, TextDelta) else Reasoning(""))
        self._part.write(delta.text)
        self.length += len(delta.text)


def _estimated(input_chars: int, output_chars: int) -> Usage:
    """For servers that do not count: four characters are about a token."""
    return Usage(input_tokens=input_chars // 4, output_tokens=output_chars // 4, estimated=True)
