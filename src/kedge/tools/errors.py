"""ToolError: a call failed. The model gets the problem and the advice, people one sentence."""

from __future__ import annotations


class ToolError(Exception):
    """`summary` is the sentence for people, where the problem itself would not suit them."""

    def __init__(self, problem: str, advice: str = "", *, summary: str = "") -> None:
        self.problem = problem
        self.advice = advice
        self.summary = summary or f"{problem.rstrip(';.')}."
        self.text = f"{problem}{advice}" if advice.startswith("\n") else f"{problem} {advice}".rstrip(" ")
        super().__init__(self.text)
