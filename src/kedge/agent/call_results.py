"""Results of calls that were denied or that failed: texts for the model, and metadata for clients."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from kedge.agent.notes import CallVerdict, format_context
from kedge.agent.turn_state import DENIAL_REASON, DENIED
from kedge.engine.errors import TurnFailed
from kedge.protocol.messages import RefusalReason
from kedge.protocol.requests import Answer
from kedge.protocol.text_safety import shorten
from kedge.store.errors import ClaimLost
from kedge.tools.errors import ToolError
from kedge.tools.port import Output

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_SHOWN_INPUT_CHARS = 2_000  # of an input that a hook changed


def deny(content: str, reason: RefusalReason, **details: Any) -> Output:
    """Return the result of a call that was denied without asking: content for the model, metadata for clients."""
    known = {name: value for name, value in details.items() if value}
    return Output(content=content, is_error=True, metadata={"refused": reason, **known})


def deny_for_person(description: str, answer: Answer) -> Output:
    """Return the result of a call that a person denied. With a reason the turn goes on, else it ends."""
    if answer.reason is None:
        content = f"Refused by the user ({description}). Wait for the user's next message."
        return Output(content=content, is_error=True, metadata={DENIED: answer.by})
    content = f"Refused by the user ({description}). The user says: {answer.reason}"
    return Output(content=content, is_error=True, metadata={DENIED: answer.by, DENIAL_REASON: answer.reason})


def fail(content: str, summary: str) -> Output:
    """Return the result of a call that failed: content for the model, and a sentence for people."""
    return Output(content=content, is_error=True, metadata=None if summary == content else {"summary": summary})


async def contain_errors(name: str, work: Callable[[], Awaitable[T]]) -> T | Output:
    """Return an error of the tool as a result, so that it never ends the run."""
    try:
        return await work()
    except ToolError as error:
        return fail(error.text, error.summary)
    except (ClaimLost, TurnFailed):
        raise
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        return fail(
            f"`{name}` was canceled from inside; this is a fault of the tool.",
            f"{name} failed with an internal error.",
        )
    except Exception as error:
        log.exception("the tool %s failed", name)
        problem = f"`{name}` failed with an internal error ({type(error).__name__}: {error})"
        summary = f"{name} failed with an internal error ({type(error).__name__})."
        return fail(f"{problem}. It may have had effects; try another way.", summary)


def add_hook_note(output: Output, verdict: CallVerdict) -> Output:
    """Tell the model what hooks said before the call, and the input that they gave it."""
    notes = [verdict.context] if verdict.context else []
    metadata = output.metadata
    if verdict.input is not None:
        changed = msgspec.json.encode(verdict.input).decode()
        notes.append(f"A hook of the user changed the input of this call to {shorten(changed, MAX_SHOWN_INPUT_CHARS)}")
        metadata = {**(metadata or {}), "changed_input": verdict.input}
    advice = "".join(f"\n\n{format_context(note)}" for note in notes)
    return msgspec.structs.replace(output, advice=output.advice + advice, metadata=metadata) if advice else output
