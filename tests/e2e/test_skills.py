"""Skills and commands as users have them: from the command line, over a killed server, and in the doctor's list."""

from __future__ import annotations

import os
from pathlib import Path

from tests.e2e.home import Home
from tests.e2e.project import Project, at_home, serve
from tests.server.client import done

ALL = {"permissions": "allow"}


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def last_prompt(project: Project) -> str:
    """What the model got as the last message of a person."""
    messages = project.models.stats()["calls"][-1]["body"]["messages"]
    return [str(each["content"]) for each in messages if each["role"] == "user"][-1]


def test_a_command_is_run_from_the_command_line_with_arguments_and_standard_input(home: Home) -> None:
    write(home.config_dir / "kedge/commands/git/look.md", "Look at $1: !`cat shop/price.py`\n\nAlso: $ARGUMENTS")
    with at_home(home) as project:
        found = project.run("/git:look 'the price' now", "-q")
        assert (found.code, found.out) == (0, "FAKE-ANSWER-OK\n")
        prompt = last_prompt(project)
        assert "Look at the price: def total(prices):" in prompt
        assert "Also: 'the price' now" in prompt
        write(home.config_dir / "kedge/commands/git/look.md", "Changed: $ARGUMENTS")
        piped = project.kedge("run", "-q", "/git:look", stdin=b"from a pipe\n")
        assert piped.code == 0
        assert last_prompt(project).startswith("Changed: ")
        assert "from a pipe" in last_prompt(project)
        listed = done(project.client.get(f"{project.workspace}/commands"))["commands"]
        assert [(each["name"], each["source"], each["kind"]) for each in listed] == [("git:look", "user", "command")]


def test_a_command_of_a_text_that_was_running_when_the_server_died_is_not_run_again(home: Home) -> None:
    text = "First: !`echo one >> log`\nSecond: !`echo two >> log; echo at work; cat door`\nThird: !`echo three >> log`"
    write(home.config_dir / "kedge/skills/toil/SKILL.md", f"---\nname: toil\ndescription: Works\n---\n{text}")
    with at_home(home) as project:
        os.mkfifo(project.directory / "door")
        session = project.session()
        project.submit(session, "/toil", "r", **ALL)
        opened = os.open(project.directory / "door", os.O_WRONLY)  # returns when the command has opened its end
        project.server.kill()
        os.close(opened)
        project.server = serve(home)
        run = project.ended("r")
        assert (run["state"], run["attempt"]) == ("completed", 2)
        assert (project.directory / "log").read_text().split() == ["one", "two"]
        prompt = last_prompt(project)
        assert "interrupted" in prompt
        assert "not run again: echo two" in prompt
        assert "Third: [Not run" in prompt
        assert [each.role for each in project.messages("/toil")] == ["user", "assistant"]


def test_an_undo_after_a_crash_takes_back_what_a_writing_sub_agent_did_and_nothing_of_the_user(home: Home) -> None:
    agent = "---\nname: fixer\ndescription: Fixes\n---\nYou are the FIXER of this test."
    write(home.config_dir / "kedge/agents/fixer.md", agent)
    write(home.config_dir / "kedge/config.toml", '[agent]\nwriters = ["fixer"]\n')
    edit = {"name": "write", "input": {"path": "made.txt", "content": "by the agent"}}
    change = {"name": "bash", "input": {"command": "echo agent >> README.md"}}
    with at_home(home) as project:
        project.models.on({"text": "", "tool_calls": [edit, change]}, {"gate": "at work"}, system="FIXER")
        delegate = {"name": "agent", "input": {"prompt": "fix it", "agent": "fixer"}}
        project.models.on({"text": "", "tool_calls": [delegate]}, {"text": "done"}, prompt="go")
        write(project.directory / "README.md", "before\n")
        write(project.directory / "mine.txt", "before\n")
        session = project.session()
        project.submit(session, "go", "r", **ALL)
        project.models.wait(held="at work")
        project.server.kill()
        write(project.directory / "mine.txt", "by the user\n")
        project.server = serve(home)
        assert project.ended("r")["state"] == "completed"
        assert (project.directory / "README.md").read_text() == "before\nagent\n"
        done(project.client.post(f"{project.workspace}/sessions/{session}/undo", {}))
        assert not (project.directory / "made.txt").exists()
        assert (project.directory / "README.md").read_text() == "before\n"
        assert (project.directory / "mine.txt").read_text() == "by the user\n"


def test_the_doctor_lists_what_is_found_and_what_is_not_used(home: Home) -> None:
    write(home.config_dir / "kedge/skills/pdf/SKILL.md", "---\nname: pdf\ndescription: PDFs\n---\nx")
    write(home.config_dir / "agents/skills/pdf/SKILL.md", "---\nname: pdf\ndescription: PDFs\n---\nx")
    with at_home(home) as project:
        write(project.directory / ".claude/skills/theirs/SKILL.md", "---\nname: theirs\ndescription: x\n---\nx")
        lines = project.kedge("doctor", "--offline").out.splitlines()
        assert any(line.startswith("ok") and "1 skill" in line for line in lines)
        assert any("agents/skills/pdf" in line and "same name" in line for line in lines)
        assert any(".claude/skills" in line and "kedge config trust" in line for line in lines)
        listed = done(project.client.get(f"{project.workspace}/skills"))
        assert [each["name"] for each in listed["skills"]] == ["pdf"]
        assert listed["untrusted"] == [str(project.directory / ".claude/skills")]
        assert project.kedge("config", "trust").code == 0
        listed = done(project.client.get(f"{project.workspace}/skills"))
        assert [each["name"] for each in listed["skills"]] == ["pdf", "theirs"]
