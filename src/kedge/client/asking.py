"""What a run asks of people: what it waits for, and what it was refused, with the rules that would have allowed it."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kedge.client.story import Event


class Refusal:
    def __init__(self, description: str, rules: list[str]) -> None:
        self.description = description  # what was asked for, in one line
        self.rules = rules  # all of them together would have allowed it; none: no rule does


class Requests:
    def __init__(self) -> None:
        self.refused: list[Refusal] = []
        self._open: dict[str, dict[str, Any]] = {}  # requests without an answer, by their id, oldest first

    @property
    def waiting_for(self) -> str | None:
        """What a person has to say something to, if there is anything."""
        return next((_description(request) for request in self._open.values()), None)

    def take(self, event: Event) -> None:
        told: dict[str, Any] = event["payload"]["payload"]
        match event["type"]:
            case "permission_request" | "question_request":
                self._open[told["id"]] = told
            case "permission_notification" | "question_notification":
                request = self._open.pop(told["id"], {})
                if told["action"] == "deny":
                    params: dict[str, Any] = request.get("params") or {}
                    self.refused.append(Refusal(_description(request), params.get("rules") or []))
            case _:
                pass


def _description(request: dict[str, Any]) -> str:
    if "questions" in request:
        return next((str(each["question"]) for each in request["questions"] if each.get("question")), "a question")
    return request.get("description") or request.get("tool") or "what was asked before"
