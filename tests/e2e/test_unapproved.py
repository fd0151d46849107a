"""A whole Kedge in mode `ask` with nothing allowed: nothing that nobody approved has an effect, whatever is tried."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kedge.tools.sandbox.sandbox import can_sandbox_read_only
from tests.e2e.project import Project, bash, call, step
from tests.server.process import Server
from tests.support.model_control import ModelControl

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="there is a sandbox only on Linux"),
    pytest.mark.skipif(not can_sandbox_read_only(), reason="this machine has no sandbox"),
]

# Ways by which commands once passed for read-only, each a cause of its own.
ATTACKS = [
    "[ a = b || sh -c 'touch pwned' ]",
    "[ a > pwned ]",
    "RANDOM='a[$(touch pwned)]'",
    "x='b[$(touch pwned)]'; a=([x]=1)",
    "x='a[$(touch pwned)]'; eval 'echo $((x))'",
    "CI='a[$(touch pwned)]' bash -c 'echo $((CI))'",
    "declare -a x; eval \"declare x='(\\$(touch pwned))'\"",
    "touch() { :; } & touch pwned",
    "touch() { :; }; unset touch; touch pwned",
    "env -u - find echo . -maxdepth 0 -exec touch pwned \\;",
    "echo '. -maxdepth 0 -exec touch pwned ;' | xargs --eof find echo",
    "watch -dn touch ls",
    "sh -c 'function touch\n{ :; }\ntouch pwned'",
    ": ${CDPATH:=/}; cd etc; head -n1 shadow",
    "> $'/dev/null\\n'",
    "LC_ALL=C; cat ??",
    "git -C hostile status",
    "cd hostile && git diff",
    "git -C bare log",
]


@pytest.fixture
def project(server: Server, models: ModelControl, tmp_path: Path) -> Project:
    project = Project(server, models, tmp_path / "shop")
    hostile = project.directory / "hostile"
    subprocess.run(["git", "init", "-q", str(hostile)], check=True)
    (hostile / "a.txt").write_text("text\n")
    subprocess.run(["git", "-C", str(hostile), "add", "."], check=True)
    for name in ("core.fsmonitor", "diff.external", "core.pager", "core.sshCommand"):
        subprocess.run(["git", "-C", str(hostile), "config", name, f"touch {project.directory}/pwned; :"], check=True)
    (hostile / "a.txt").write_text("changed\n")
    subprocess.run(["git", "init", "-q", "--bare", str(project.directory / "bare")], check=True)
    subprocess.run(
        ["git", "-C", str(project.directory / "bare"), "config", "core.fsmonitor", f"touch {project.directory}/pwned"],
        check=True,
    )
    return project


@pytest.mark.parametrize("mode", ["ask", "auto-edit", "plan"])
def test_no_known_attack_has_an_effect(project: Project, mode: str) -> None:
    before = sorted(path.name for path in project.directory.rglob("*") if ".git" not in path.parts)
    prompt = project.prompt(*(step(bash(command)) for command in ATTACKS), text="That was all.")
    done = project.run(prompt, "--mode", mode)
    assert done.code in (0, 4), done
    assert sorted(path.name for path in project.directory.rglob("*") if ".git" not in path.parts) == before
    told = "\n".join(result.content for result in project.results(prompt))
    assert "root:$" not in told
    assert "root:*" not in told


def test_a_sandboxed_failure_says_so_and_leaving_the_sandbox_needs_approval(project: Project) -> None:
    write = "for name in made; do cat $name || echo x | tee /dev/full; done; awk 'BEGIN { print > \"made\" }'"
    prompt = project.prompt(
        step(bash(write)), step(call("bash", command="ls", unsandboxed=True)), text="It did not work."
    )
    done = project.run(prompt)
    first, second = (result.content for result in project.results(prompt))
    assert done.code == 4
    assert not (project.directory / "made").exists()
    assert "tee" in first or "sandbox" in first
    assert "permission" in second


def test_what_a_rule_allows_runs_freely_with_plain_commands_beside_it(project: Project) -> None:
    prompt = project.prompt(step(bash("cd shop && touch made | tail -n 1; ls made")), text="Done.")
    done = project.run(prompt, "--allow", "bash(touch *)")
    assert (done.code, done.out) == (0, "Done.\n"), done
    assert (project.directory / "shop" / "made").exists()


def test_the_model_sees_why_a_sandboxed_command_failed(project: Project) -> None:
    prompt = project.prompt(step(bash("sed -n 'w made' $HOME/none || awk 'BEGIN { print > \"made\" }'")), text="Oh.")
    done = project.run(prompt)
    assert done.code == 0, done
    (result,) = project.results(prompt)
    assert "read-only sandbox" in result.content
    assert "unsandboxed" in result.content
    assert not (project.directory / "made").exists()
