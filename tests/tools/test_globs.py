"""Patterns mean what ripgrep takes them to mean; and braces are what a shell makes of them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kedge.tools.errors import ToolError
from kedge.tools.search.ripgrep import escape_glob, expand_braces, find_program_or_fail, loosen_glob, make_glob_matcher

NAMES = ["a.py", "b.py", "src/a.py", "src/b.ts", "src/deep/a.py", "src/deep/x[1].py", "lib/e.ts", "src/.hidden/c.tsx"]
PIECES = st.sampled_from(["*", "**", "?", "/", "a", "b", ".py", ".ts", "src", "deep", "[ab]", "x", "lib"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(st.lists(PIECES, min_size=1, max_size=5).map("".join))
def test_a_pattern_matches_what_ripgrep_matches(tmp_path: Path, pattern: str) -> None:
    if pattern.endswith("/") or "//" in pattern or "***" in pattern or pattern.startswith("!"):
        return  # directories alone, or nothing that anybody means
    for name in NAMES:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    command = [find_program_or_fail(tmp_path), "--no-config", "--files", "--hidden", "--no-ignore", "-g", pattern]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    theirs = set(done.stdout.decode().split("\n")) - {""}
    matches = make_glob_matcher([pattern])
    assert {name for name in NAMES if matches(name)} == theirs


@pytest.mark.parametrize("pattern", ["a{b,c}d", "{a,b}{c,d}", "x{1,{2,3}}y", "{a,}b", "plain"])
def test_braces_are_what_bash_makes_of_them(pattern: str) -> None:
    done = subprocess.run(["bash", "-c", f"printf '%s\\n' {pattern}"], capture_output=True, text=True, check=True)
    assert expand_braces(pattern) == done.stdout.split()


@pytest.mark.parametrize("pattern", ["{a,b", "{a,{b}", "{1,2}" * 8, "x" * 2_000])
def test_a_pattern_without_end_is_refused(pattern: str) -> None:
    with pytest.raises(ToolError, match="pattern"):
        expand_braces(pattern)


@given(st.text(alphabet="ab*?[]{}!\\#/é", min_size=1, max_size=8).filter(lambda name: "/" not in name))
def test_an_escaped_name_means_only_itself(name: str) -> None:
    matches = make_glob_matcher([escape_glob(name)])
    assert matches(name)
    assert not matches(f"{name}x")


def test_a_class_never_matches_a_slash() -> None:
    matches = make_glob_matcher(["src[!a]b.ts", "lib[!a-c].ts"])
    assert not matches("src/b.ts")
    assert matches("libd.ts")
    assert not matches("libb.ts")


@pytest.mark.parametrize(
    ("pattern", "loose"),
    [
        ("**/??.py", "**/*.py"),
        ("a?*b", "a*b"),
        ("a*?b", "a*b"),
        ("[ab]?c", "*c"),
        ("src/**", "src/**"),
        (r"\?[", r"\?["),
    ],
)
def test_a_loosened_pattern_has_only_stars(pattern: str, loose: str) -> None:
    assert loosen_glob(pattern) == loose


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("*a" * 30 + "b", "a" * 250),
        ("**/a/" * 30 + "x", "a/" * 500 + "b"),
        ("**/" * 300 + "x", "a/" * 500 + "b"),
        ("*?[a]" * 30 + "b", "a" * 250),
    ],
)
def test_no_pattern_takes_for_ever(pattern: str, name: str) -> None:
    """It is matched in the server's own loop. A plain expression would still be at it tomorrow."""
    assert not make_glob_matcher([pattern])(name)
    assert make_glob_matcher([pattern])(name[:-1] + pattern[-1])
