"""`question`: asks a person. The request is durable (P14), and the call starts only after the answer (P13)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from kedge.protocol.tools import BUILT_IN_TOOLS
from kedge.tools.errors import ToolError
from kedge.tools.port import Output, Tool, ToolContext

MAX_QUESTIONS = 4
MAX_OPTIONS = 10

Text = Annotated[str, msgspec.Meta(min_length=1, max_length=1_000)]


class Question(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    question: Text
    kind: Literal["yes_no", "one", "many", "text"] = "text"
    options: Annotated[list[Text], msgspec.Meta(max_length=MAX_OPTIONS, description="for `one` and `many`")] = []


class QuestionParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    questions: Annotated[list[Question], msgspec.Meta(min_length=1, max_length=MAX_QUESTIONS)]


def list_questions(params: QuestionParams) -> list[dict[str, Any]]:
    """Return the questions as shown to the person. Raises ToolError."""
    for question in params.questions:
        if question.kind in ("one", "many") and len(question.options) < 2:
            raise ToolError(f"{question.question!r} is of kind {question.kind!r} and needs at least two options.")
    return [msgspec.to_builtins(question) for question in params.questions]


async def run(ctx: ToolContext, params: QuestionParams) -> Output:
    answer = ctx.answer
    if answer is None or answer.action != "answer":
        by = {"by": answer.by} if answer else None
        return Output(content="Nobody answered. Decide yourself, and say what you assumed.", metadata=by)
    answers = list(answer.answers or [])
    lines: list[str] = []
    for i, question in enumerate(params.questions):
        text = _to_text(answers[i]) if i < len(answers) else "(no answer)"
        lines += [f"Q: {question.question}", f"A: {text}", ""]
    return Output(content="\n".join(lines).strip(), metadata={"answers": answers, "by": answer.by})


def _to_text(value: Any) -> str:
    """Format an answer of a client: text, yes or no, one or several options."""
    match value:
        case bool():
            return "yes" if value else "no"
        case str():
            return value or "(no answer)"
        case list():
            return ", ".join(_to_text(each) for each in value) or "(none of them)"  # pyright: ignore[reportUnknownVariableType]
        case None:
            return "(no answer)"
        case _:
            return msgspec.json.encode(value).decode()


TOOL = Tool(facts=BUILT_IN_TOOLS["question"], params=QuestionParams, run=run, list_questions=list_questions)
