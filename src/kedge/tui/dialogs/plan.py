"""`PlanDialog`: what comes after a plan: going on with it in another mode, or planning on."""

from __future__ import annotations

from collections.abc import Callable

from textual.app import ComposeResult
from textual.widgets import Static

from kedge.protocol.runs import Mode
from kedge.tui.dialogs.docked import Choice, DockedDialog

GO_ON_PROMPT = "Go on: carry out the plan."


class PlanDialog(DockedDialog):
    """Calls `answer` with the mode of the next prompt and a remark, which only planning on has; None: it was closed."""

    FOOTER = "← → select · Enter confirm · Esc close"

    def __init__(
        self,
        run_id: str,
        answer: Callable[[Mode | None, str], None],
        write: Callable[[str], None],
        *,
        has_cost_limit: bool,
        key: str = "F2",
        remark: str = "",
    ) -> None:
        super().__init__(
            list_choices(has_cost_limit=has_cost_limit),
            write,
            key=key,
            reason=remark,
            placeholder="What should be different?",
        )
        self.run_id = run_id
        self._answer = answer

    def body(self) -> ComposeResult:
        yield Static("Go on with this plan?", classes="dialog-title", markup=False)

    def take_choice(self, choice: Choice, reason: str) -> None:
        self._answer(choice.value, reason)

    def postpone(self) -> None:
        self._answer(None, "")


def list_choices(*, has_cost_limit: bool) -> list[Choice]:
    auto = "" if has_cost_limit else " (needs agent.max_cost)"
    return [
        Choice("a", "Go on in ask: changes need approval", "ask"),
        Choice("e", "Go on in auto-edit: edits in the workspace apply", "auto-edit"),
        Choice("u", f"Go on in auto: commands run in the sandbox, too{auto}", "auto"),
        Choice("y", "Go on in yolo: nothing needs approval", "yolo"),
        Choice("k", "Keep planning: say what should be different", "plan", asks_reason=True),
    ]
