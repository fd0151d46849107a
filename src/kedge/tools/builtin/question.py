"""`question`: asks a person. What is asked is durable (P14), and the call has not started while it waits (P13)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from kedge.protocol.tools import BUILT_IN_TOOLS
from kedge.tools.errors import ToolError
from kedge.tools.port import Output, Tool, ToolContext

MAX_QUESTIONS = 4
MAX_OPTIONS = 10

Words = Annotated[str, msgspec.Meta(min_length=1, max_length=1_000)]


class Question(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    question: Words
    kind: Literal["yes_no", "one", "many", "text"] = "text"
    options: Annotated[list[Words], msgspec.Meta(max_length=MAX_OPTIONS, description="for `one` and `many`")] = []


class QuestionParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    questions: Annotated[list[Question], msgspec.Meta(min_length=1, max_length=MAX_QUESTIONS)]


def list_questions(params: QuestionParams) -> list[dict[str, Any]]:
    """What the person is shown."""
    for question in params.questions:
        if question.kind in ("one", "many") and len(question.options) < 2:
            raise ToolError(f"{question.question!r} is of kind {question.kind!r} and needs at least two options.")
    return [msgspec.to_builtins(question) for question in params.questions]


async def run(ctx: ToolContext, params: QuestionParams) -> Output:
    answer = ctx.answer
    if answer is None or answer.action != "answer":
        by = {"by": answer.by} if answer else None
        return Output(content="Nobody answered. Decide yourself, and say what you assumed.", metadata=by)
    given = list(answer.answers or [])
    lines: list[str] = []
    for i, question in enumerate(params.questions):
        said = _words(given[i]) if i < len(given) else "(no answer)"
        lines += [f"Q: {question.question}", f"A: {said}", ""]
    return Output(content="\n".join(lines).strip(), metadata={"answers": given, "by": answer.by})


def _words(said: Any) -> str:
    """Whatever a client sends: text, yes or no, a choice, several of them."""
    match said:
        case bool():
            return "yes" if said else "no"
        case str():
            return said or "(no answer)"
        case list():
            return ", ".join(_words(each) for each in said) or "(none of them)"  # pyright: ignore[reportUnknownVariableType]
        case None:
            return "(no answer)"
        case _:
            return msgspec.json.encode(said).decode()


TOOL = Tool(facts=BUILT_IN_TOOLS["question"], params=QuestionParams, run=run, list_questions=list_questions)
