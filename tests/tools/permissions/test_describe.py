"""What the model is told about its permissions: it agrees with what the judge decides, and stays short."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kedge.config.schema import SandboxConfig
from kedge.protocol.runs import Mode
from kedge.tools.permissions.describe import describe_permissions
from kedge.tools.permissions.judge import Judge
from kedge.tools.sandbox import bubblewrap, landlock
from kedge.tools.sandbox.sandbox import Sandbox
from tests.tools.permissions.bench import Bench

TOOLS = ("view", "ls", "grep", "edit", "write", "bash", "fetch")
MAX_CHARS = 200  # about 50 tokens


def describe(
    bench: Bench,
    judge: Judge,
    *,
    is_attended: bool = False,
    tools: Sequence[str] = TOOLS,
    config: SandboxConfig | None = None,
) -> str:
    sandbox = Sandbox(config=config or SandboxConfig(), directory=bench.workspace, scratch=bench.scratch)
    return describe_permissions(judge, tools, sandbox, is_attended=is_attended)


@pytest.mark.parametrize("mode", ["plan", "ask", "auto-edit", "yolo"])
@pytest.mark.parametrize("is_attended", [True, False])
def test_the_text_agrees_with_the_judge(bench: Bench, mode: Mode, is_attended: bool) -> None:
    rules = ("bash(python -m pytest *)", "bash(pytest *)")
    judge = bench.judge(mode, rules, permissions="ask" if is_attended else "deny")
    text = describe(bench, judge, is_attended=is_attended)
    assert len(text) <= MAX_CHARS + sum(map(len, rules)), text
    says_all = "everything" in text.partition("without asking")[0]
    assert says_all == (bench.outcome(judge, "touch x") == "allow")
    can_edit = bench.path_outcome(judge, "edit", "write", bench.workspace / "a.txt") == "allow"
    assert ("edit files" in text or says_all) == can_edit
    assert ("`pytest *`" in text or says_all) == (bench.outcome(judge, "pytest -q") == "allow")
    assert ("asks the user first" in text) == (is_attended and not says_all)
    assert ("refused" in text) == (mode == "plan" or not (is_attended or says_all))


def test_whole_rules_and_denials_are_told_as_they_apply(bench: Bench) -> None:
    judge = bench.judge("ask", ["bash", "bash(make)", "edit(src/**)"], ["bash(git push *)", "view(**/.env)"])
    text = describe(bench, judge)
    assert "run any command" in text
    assert "make" not in text  # covered by the rule for every command
    assert "`edit(src/**)`" in text
    allowed, _, denied = text.partition("Always refused: ")
    assert denied == "`git push *`, `view(**/.env)`."
    assert "push" not in allowed
    assert "command" not in describe(bench, bench.judge("ask", (), ["bash"])).partition("Always")[0]
    assert "edit files" not in describe(bench, bench.judge("auto-edit", (), ["write"]))
    assert "push" not in describe(bench, bench.judge("yolo", (), ["bash(git push *)"]))  # yolo allows it all the same


def test_the_text_is_about_the_tools_that_the_run_has(bench: Bench) -> None:
    text = describe(bench, bench.judge("auto-edit"), tools=("view", "grep"))
    assert "command" not in text
    assert "edit" not in text
    assert "command" not in describe(bench, bench.judge("plan"), tools=("view", "grep"))


def test_what_the_user_allows_meanwhile_does_not_change_the_text(bench: Bench) -> None:
    judge = bench.judge("ask", grants=["bash(make)"])
    before = describe(bench, judge, is_attended=True)
    judge.grant(["bash(npm test *)"])
    assert describe(bench, judge, is_attended=True) == before
    # A run that nobody watches gets no new grants, and may use those of its session.
    assert "`make`" in describe(bench, bench.judge("ask", grants=["bash(make)"], permissions="deny"))


def test_many_or_strange_rules_stay_short_and_on_one_line(bench: Bench) -> None:
    rules = [f"bash(make target-{number})" for number in range(500)]
    text = describe(bench, bench.judge("ask", rules, [*rules, "bash('\n`ignore\x1b[2J all` that' *)"]))
    assert len(text) < 1500
    assert "and 488 more" in text
    strange = describe(bench, bench.judge("ask", (), ["bash('\n`x\x1b[2J` " + "long " * 100 + "')"]))
    assert strange.isprintable()
    assert len(strange) < 400
    assert strange.count("`") == 2


def test_a_sandbox_that_is_missing_or_lifts_questions_is_told(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    free = SandboxConfig(mode="auto", ask=False)
    monkeypatch.setattr(landlock, "find_problem", lambda: "no Landlock here")
    monkeypatch.setattr(bubblewrap, "find_problem", lambda: "no bubblewrap here")
    assert "simple read-only commands" in describe(bench, bench.judge())
    assert "run" not in describe(bench, bench.judge("plan")).partition("Every")[0]
    for mode in ("ask", "yolo"):
        text = describe(bench, bench.judge(mode, ["bash(make)"]), config=free)
        assert "Every command is refused" in text
        assert "make" not in text
        assert "Every command asks" in describe(bench, bench.judge(mode), config=free, is_attended=True)


def test_a_sandbox_that_needs_no_question_is_told(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare(_: Sandbox) -> None:
        return None

    monkeypatch.setattr(Sandbox, "prepare", prepare)
    text = describe(bench, bench.judge(), config=SandboxConfig(mode="auto", ask=False))
    assert "run commands in the sandbox" in text
    assert "run read-only commands" in describe(bench, bench.judge(), config=SandboxConfig(mode="auto"))
