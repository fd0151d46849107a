"""The rules that "allow for this session" remembers, and the grants read back from them."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kedge.protocol.bounds import MAX_RULE_CHARS
from kedge.protocol.requests import PermissionRequest
from kedge.tools.permissions.policy import Ask, read_grants
from kedge.tools.port import Access
from tests.tools.permissions import cases
from tests.tools.permissions.bench import Bench, kind_of

SUGGESTED = [
    ("npm test", ("bash(npm test *)",)),
    ("npm run build --watch", ("bash(npm run build *)",)),
    ("python -m pytest -q tests", ("bash(python -m pytest *)",)),
    ("python3 -m unittest tests.test_price", ("bash(python3 -m unittest *)",)),
    ("python3.11 -m pytest -q", ("bash(python3.11 -m pytest *)",)),
    ("python -m build --wheel", ("bash(python -m build --wheel)",)),
    ("python3.12 -c 'x'", ()),
    ("python -m timeit 'x'", ()),
    ("echo 'x' | python -m code", ()),
    ("python -m IPython.core x", ()),
    ("python -m", ()),
    ("python3 -I -m build", ()),
    ("make all", ("bash(make all)",)),
    ("git push origin main", ("bash(git push origin main)",)),
    ("git commit -m 'a b'", ("bash(git commit *)",)),
    ("echo x > out.txt; make all", ("edit(**)", "bash(make all)")),
    ("make 'a (b)' '*'", ("bash(make 'a (b)' '*')",)),
    ("python x.py", ("bash(python x.py)",)),
    ("python -c 'x'", ()),
    ("node -e 1", ()),
    ("bash script.sh", ("bash(bash script.sh)",)),
    ("ls | bash", ()),
    ("awk '{print}' a.txt | make", ()),
    ("timeout 60 npm test", ("bash(npm test *)",)),
    ("npm test | column -t", ("bash(npm test *)", "bash(column -t)")),
    ("sudo ls", ()),
    ("rm a.txt", ()),
    ("make $x", ()),
    ("make *.c", ()),
    ("eval $x", ()),
    ("make all; python -c 1", ()),
    ("X=1 make", ()),
    ("echo x > .git/config", ("edit(WORKSPACE/.git/config)",)),
    ("cat /etc/passwd", ("view(/etc/passwd)",)),
]


@pytest.mark.parametrize(("command", "rules"), SUGGESTED)
def test_the_suggested_rules(bench: Bench, command: str, rules: tuple[str, ...]) -> None:
    decision = bench.decide(bench.judge(), command)
    assert isinstance(decision, Ask)
    assert decision.rules == tuple(rule.replace("WORKSPACE", str(bench.workspace)) for rule in rules)


# Other code in each directory: allowed for a session, never for all directories.
LOCAL = ("bash script.sh", "python -m build --wheel", "python x.py", "./build.sh fast")


@pytest.mark.parametrize("command", LOCAL)
def test_a_script_of_the_workspace_is_not_always_allowed(bench: Bench, command: str) -> None:
    decision = bench.decide(bench.judge(), command)
    assert isinstance(decision, Ask)
    assert (len(decision.rules), decision.always_rules) == (1, ())


@pytest.mark.parametrize(("command", "rules"), [each for each in SUGGESTED if each[0] not in LOCAL])
def test_what_is_always_allowed_is_no_wider_and_holds_for_one_file(
    bench: Bench, command: str, rules: tuple[str, ...]
) -> None:
    decision = bench.decide(bench.judge(), command)
    assert isinstance(decision, Ask)
    wanted = [rule.replace("edit(**)", "edit(WORKSPACE/out.txt)") for rule in rules]
    assert decision.always_rules == tuple(rule.replace("WORKSPACE", str(bench.workspace)) for rule in wanted)
    if decision.always_rules:
        assert bench.outcome(bench.judge(allow=decision.always_rules), command) == "allow"


def test_an_edit_is_always_allowed_for_its_file_alone(bench: Bench) -> None:
    file = bench.workspace / "src/main (1).py"
    decision = bench.judge().judge("write", Access(kind="write", subject=str(file), description=""))
    assert isinstance(decision, Ask)
    judge = bench.judge(allow=decision.always_rules)
    assert bench.path_outcome(judge, "write", "write", file) == "allow"
    assert bench.path_outcome(judge, "write", "write", bench.workspace / "src/main.py") == "ask"


def test_a_rule_that_is_too_long_is_not_always_allowed(bench: Bench) -> None:
    decision = bench.decide(bench.judge(), f"make {'x' * MAX_RULE_CHARS}")
    assert isinstance(decision, Ask)
    assert (len(decision.rules), decision.always_rules) == (1, ())


@pytest.mark.parametrize("table", cases.TABLES.values(), ids=cases.TABLES.keys())
def test_a_grant_allows_the_same_command_and_no_other(bench: Bench, table: cases.Cases) -> None:
    for command in [command for command, expected in table if expected == "ask"]:
        decision = bench.decide(bench.judge(), command)
        assert isinstance(decision, Ask), command
        assert not {"bash", "bash(*)", "edit", "view", "fetch"} & set(decision.rules), command
        if decision.rules:
            judge = bench.judge(grants=decision.rules)
            assert bench.outcome(judge, command) == "allow", command
            assert bench.outcome(judge, f"{command}\nrm -rf src") == "ask", command
            assert bench.outcome(judge, "python -c 1") == "ask", command


def test_a_grant_for_the_workspace_does_not_cover_protected_files(bench: Bench) -> None:
    judge = bench.judge(grants=["edit(**)"])
    assert bench.path_outcome(judge, "write", "write", bench.workspace / "src/main.py") == "allow"
    assert bench.path_outcome(judge, "write", "write", bench.workspace / ".git/config") == "ask"
    judge.grant([f"edit({bench.workspace}/.git/config)"])
    assert bench.path_outcome(judge, "write", "write", bench.workspace / ".git/config") == "allow"


def test_a_grant_applies_at_once_and_a_bad_one_is_dropped(bench: Bench) -> None:
    judge = bench.judge(grants=["no such rule"])
    assert bench.outcome(judge, "make") == "ask"
    judge.grant(["bash(make)"])
    assert bench.outcome(judge, "make") == "allow"


def test_grants_are_read_from_answered_requests(bench: Bench) -> None:
    asked = bench.decide(bench.judge(), "make all")
    assert isinstance(asked, Ask)
    request = PermissionRequest(
        id="1", session_id="s", run_id="r", tool_call_id="c", tool="bash", action="execute", description="",
        params=asked.params({"command": "make all"}),
    )  # fmt: skip
    assert request.params["command"] == "make all"
    assert read_grants([request, request]) == ("bash(make all)",)
    broken = PermissionRequest(
        id="2", session_id="s", run_id="r", tool_call_id="c", tool="bash", action="execute", description="",
        params={"rules": [1, None, "bash(x)"]},
    )  # fmt: skip
    assert read_grants([broken]) == ("bash(x)",)
    assert bench.outcome(bench.judge(grants=read_grants([request])), "make all") == "allow"


@settings(max_examples=200, deadline=None)
@given(words=st.lists(st.text(max_size=6), min_size=1, max_size=4))
def test_a_granted_command_matches_only_itself_whatever_its_words_contain(bench: Bench, words: list[str]) -> None:
    command = shlex.join(["make", *words])
    decision = bench.decide(bench.judge(), command)
    assert isinstance(decision, Ask)
    if decision.rules:
        judge = bench.judge(grants=decision.rules)
        assert kind_of(judge.judge("bash", Access(kind="execute", subject=command, description=""))) == "allow"
        assert bench.outcome(judge, command + " x") == "ask"
