"""The reference implementation of agentskills.io is the judge: what it accepts is read alike, without a remark."""

from __future__ import annotations

import json
import subprocess
import sysconfig
from pathlib import Path

import pytest

from kedge.config.schema import Config
from kedge.skills.library import LibraryReader

pytest.importorskip("skills_ref", reason="skills-ref, of the extra dev, is not installed")
AGENTSKILLS = Path(sysconfig.get_path("scripts"), "agentskills")

ACCEPTED = {
    "plain": "name: plain\ndescription: Does it.",
    "quoted": 'name: quoted\ndescription: "Use when: it\'s needed"',
    "folded": "name: folded\ndescription: >\n  Use it\n  often.",
    "full-set": "name: full-set\ndescription: x\nlicense: MIT\ncompatibility: any\nmetadata:\n  author: me\n"
    "allowed-tools: Bash(git:*) Read",
    "übung": "name: übung\ndescription: Für Übungen.",
}
REJECTED = {
    "Upper": "name: Upper\ndescription: x",
    "two--hyphens": "name: two--hyphens\ndescription: x",
    "other": "name: another\ndescription: x",
    "silent": "name: silent",
}


def judge(directory: Path) -> bool:
    return subprocess.run([AGENTSKILLS, "validate", directory], capture_output=True, check=False).returncode == 0


def test_the_judge_and_we_agree(tmp_path: Path) -> None:
    for name, front in {**ACCEPTED, **REJECTED}.items():
        path = tmp_path / ".claude/skills" / name / "SKILL.md"
        path.parent.mkdir(parents=True)
        path.write_text(f"---\n{front}\n---\nThe body.\n")
    library = LibraryReader().read(tmp_path, {"HOME": str(tmp_path)}, Config())
    remarks = {Path(problem.path).parent.name for problem in library.problems}
    assert remarks == set(REJECTED)
    for name in {**ACCEPTED, **REJECTED}:
        assert judge(tmp_path / ".claude/skills" / name) == (name in ACCEPTED), name
    for name in ACCEPTED:
        command = [AGENTSKILLS, "read-properties", tmp_path / ".claude/skills" / name]
        properties = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        skill = library.skills[name]
        assert (skill.name, skill.description) == (properties["name"], properties["description"].strip())
