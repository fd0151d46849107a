"""Rules: what they match, word for word, and what is said of those that cannot be read."""

from __future__ import annotations

import re
import string
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kedge.config.rules import BadRule
from kedge.tools.permissions.rules import parse_rule, quote_path, quote_word
from kedge.tools.permissions.shell import UNKNOWN, Word
from tests.tools.permissions.bench import Bench

WORDS = [
    ("bash(git status)", "git status", "yes"),
    ("bash(git status)", "git status -s", "no"),
    ("bash(git status *)", "git status", "yes"),
    ("bash(git status *)", "git status -s src", "yes"),
    ("bash(git status *)", "git statusx", "no"),
    ("bash(git *)", "git push --force", "yes"),
    ("bash(git * main)", "git push main", "yes"),
    ("bash(git * main)", "git push origin main", "no"),
    ("bash(npm run test:*)", "npm run test:unit", "yes"),
    ("bash(npm run test:*)", "npm run test:unit --watch", "no"),
    ("bash(npm run test:* *)", "npm run test:unit --watch", "yes"),
    ("bash(npm run test:*)", "npm run build", "no"),
    ("bash(echo '*')", "echo *", "yes"),
    ("bash(echo '*')", "echo a", "no"),
    (r"bash(echo \*)", "echo a", "no"),
    ('bash(echo "a b")', "echo a b", "no"),
    ("bash(*)", "anything at all", "yes"),
    ("bash", "anything at all", "yes"),
    ("bash(FOO=1 make)", "FOO=1 make", "yes"),
    ("bash(python -m pytest *)", "python3 -m pytest -q tests", "yes"),
    ("bash(python3 -m pytest *)", "python -m pytest", "yes"),
    ("bash(python3.11 -m pytest *)", "python -m pytest", "yes"),
    ("bash(python -m pytest *)", "python3.12 -mpytest -q", "yes"),
    ("bash(python -mpytest *)", "python3 -m pytest -q", "yes"),
    ("bash(python -m pytest *)", "pytest -q", "yes"),
    ("bash(pytest *)", "python3 -m pytest -q", "yes"),
    ("bash(pytest)", "python3 -m pytest -q", "no"),
    ("bash(python *)", "python3 -m build", "yes"),
    ("bash(python *)", "python3 setup.py", "no"),
    ("bash(python -m pytest *)", "python3 -m pytest_evil", "no"),
    ("bash(python -m pytest *)", "python3 -mpytest.evil", "no"),
    ("bash(python -m pytest *)", "python3 -I -m pytest", "no"),
    ("bash(python -m pytest *)", "python3 -Im pytest", "no"),
    ("bash(python -m pytest *)", "python3 -c pytest", "no"),
    ("bash(python -m pytest *)", "Python -m pytest", "no"),
    ("bash(python -m pytest *)", "python -M pytest", "no"),
    ("bash(python -m pytest *)", "python2 -m pytest", "no"),
    ("bash(python -m pytest *)", "python3.x -m pytest", "no"),
    ("bash(python -m pytest *)", "./python3 -m pytest", "no"),
    ("bash(python -m pytest *)", "./pytest", "no"),
    ("bash(pytest *)", "FOO=1 python -m pytest", "no"),
    ("bash(ruff *)", "python -m ruff check", "no"),
    ("bash(python -m ruff *)", "ruff check", "no"),
    ("bash(python -m)", "python3 -m pytest", "no"),
]


@pytest.mark.parametrize(("rule", "command", "expected"), WORDS)
def test_a_rule_for_bash_matches_one_simple_command_by_its_words(rule: str, command: str, expected: str) -> None:
    words = [Word(text) for text in command.split()]
    assert parse_rule(rule, "/w", None).matches_words(words) == expected


@pytest.mark.parametrize(
    ("rule", "words", "expected"),
    [
        ("bash(git push *)", [Word("git"), UNKNOWN], "maybe"),
        ("bash(git *)", [Word("git"), UNKNOWN], "yes"),
        ("bash(git)", [Word("git"), UNKNOWN], "maybe"),
        ("bash(git * x)", [Word("git"), Word(None), Word("x")], "yes"),
        ("bash(git * x)", [Word("git"), UNKNOWN, Word("x")], "maybe"),
        ("bash(cat a.txt)", [Word("cat"), Word("a*", is_glob=True)], "maybe"),
        ("bash(cat *)", [Word("cat"), Word("a*", is_glob=True)], "yes"),
        ("bash(rm *)", [Word("cat"), UNKNOWN], "no"),
    ],
)
def test_a_word_that_is_not_known_decides_nothing(rule: str, words: list[Word], expected: str) -> None:
    assert parse_rule(rule, "/w", None).matches_words(words) == expected


PATHS = [
    ("edit(src/**)", "src/a.py", True),
    ("edit(src/**)", "src/deep/a.py", True),
    ("edit(src/**)", "src", True),
    ("edit(src/**)", "srcs/a.py", False),
    ("edit(src/*)", "src/a.py", True),
    ("edit(src/*)", "src/deep/a.py", False),
    ("edit(src/)", "src/deep/a.py", True),
    ("edit(*.md)", "README.md", True),
    ("edit(*.md)", "docs/README.md", False),
    ("edit(**/*.md)", "docs/deep/README.md", True),
    ("edit(**/*.md)", "README.md", True),
    ("edit(a?c)", "abc", True),
    ("edit(a?c)", "a/c", False),
    ("edit(**)", "anything/at/all", True),
    ("edit(**)", "/elsewhere", False),
    ("edit(//elsewhere/**)", "/elsewhere/x", True),
    ("edit(/elsewhere/**)", "/elsewhere/x", True),
    ("edit(/**)", "/elsewhere/x", True),
    ("edit(~/notes/**)", "HOME/notes/x", True),
    ("edit(~/notes/**)", "HOME/x", False),
    ("edit(src/../docs/*)", "docs/x", True),
    (r"edit(a\*b)", "a*b", True),
    (r"edit(a\*b)", "axb", False),
    ("edit(link-dir/**)", "HOME/x", True),
    ("edit(a(b))", "a(b)", True),
    ("edit", "/anything", True),
]


@pytest.mark.parametrize(("rule", "path", "expected"), PATHS)
def test_a_rule_for_files_matches_a_resolved_path(bench: Bench, rule: str, path: str, expected: bool) -> None:
    path = str(bench.workspace / path.replace("HOME", str(bench.home)))
    assert parse_rule(rule, str(bench.workspace), str(bench.home)).matches_path(path) is expected


@pytest.mark.parametrize(
    ("rule", "url", "expected"),
    [
        ("fetch(domain:example.com)", "https://example.com/a", True),
        ("fetch(domain:example.com)", "https://EXAMPLE.com:8443/a", True),
        ("fetch(domain:example.com)", "https://example.com./a", True),
        ("fetch(domain:example.com)", "https://a.example.com/", False),
        ("fetch(domain:example.com)", "https://example.com@evil.org/", False),
        ("fetch(domain:example.com)", "https://evil.org/example.com", False),
        ("fetch(domain:*.example.com)", "https://a.b.example.com/", True),
        ("fetch(domain:*.example.com)", "https://example.com/", False),
        ("fetch(domain:*.example.com)", "https://evilexample.com/", False),
        ("fetch(domain:[::1])", "http://[::1]/", True),
        ("fetch", "https://anything.org", True),
        ("fetch(domain:example.com)", "https://[broken", False),
    ],
)
def test_a_rule_for_addresses_matches_the_host(rule: str, url: str, expected: bool) -> None:
    assert parse_rule(rule, "/w", None).matches_url(url) is expected


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("", "write `tool` or `tool(pattern)`"),
        ("bash(git", "write `tool` or `tool(pattern)`"),
        ("Bash(git)", "write `tool` or `tool(pattern)`"),
        ("shell(git)", "unknown tool 'shell'"),
        ("bash()", "the pattern is empty"),
        ("bash(git; rm)", "one simple command"),
        ("bash(git | sh)", "one simple command"),
        ("bash(echo $HOME)", "one simple command"),
        ("bash(ls > x)", "one simple command"),
        ("bash(echo 'x)", "is not closed"),
        ("bash(echo \\)", "backslash at the end"),
        ("edit(~other/x)", "your own home"),
        ("edit(a*/../b)", "`..` cannot follow a wildcard"),
        ("fetch(example.com)", "write `fetch(domain:example.com)`"),
        ("fetch(domain:a*b)", "write `fetch(domain:example.com)`"),
        ("todos(x)", "takes no pattern"),
    ],
)
def test_a_bad_rule_is_named_with_what_is_expected(rule: str, expected: str) -> None:
    with pytest.raises(BadRule) as error:
        parse_rule(rule, "/w", "/h")
    assert repr(rule) in str(error.value)
    assert expected in str(error.value)


def test_a_judge_is_not_made_of_a_bad_rule(bench: Bench) -> None:
    with pytest.raises(BadRule, match="shell"):
        bench.judge(allow=["shell(git)"])


@pytest.mark.slow
@settings(deadline=None)
@given(words=st.lists(st.text(max_size=8), min_size=1, max_size=4), other=st.text(max_size=8))
def test_a_word_written_into_a_rule_is_read_back_letter_for_letter(words: list[str], other: str) -> None:
    rule = parse_rule(f"bash({' '.join(map(quote_word, words))})", "/w", None)
    assert rule.matches_words([Word(word) for word in words]) == "yes"
    assert rule.matches_words([Word(word) for word in [*words, other]]) == "no"
    assert (rule.matches_words([Word(other), *map(Word, words[1:])]) == "yes") is (other == words[0])


def _forms_by_the_book(command: tuple[str, ...]) -> set[tuple[str, ...]]:
    """Every command that docs/permissions.md calls the same, found without the code under test."""
    line = "\0".join(command)
    module = re.fullmatch(r"python(?:3(?:\.\d+)?)?\0-m\0?([^\0].*)", line) or re.fullmatch(r"(pytest(?:\0.*)?)", line)
    if module is None:
        return {command}
    names = ["python", "python3", *(f"python3.{minor}" for minor in range(50))]
    lines = {line, *(f"{name}\0-m{end}{module[1]}" for name in names for end in ("\0", ""))}
    lines |= {module[1]} if module[1].split("\0")[0] == "pytest" else set()
    return {tuple(each.split("\0")) for each in lines}


_NAMES = st.sampled_from(["python", "python3", "python3.11", "python2", "pytest", "./python", "Python", "py*", "*"])
_REST = st.lists(
    st.sampled_from(["-m", "-mpytest", "-mx", "pytest", "x", "-I", "-c", "-mpytest*", "*", "-q", "python"]), max_size=4
)


@settings(deadline=None, max_examples=500)
@given(rule=st.tuples(_NAMES, _REST), name=_NAMES, rest=_REST)
def test_a_rule_matches_a_command_in_one_of_its_equal_forms_and_no_other(
    rule: tuple[str, list[str]], name: str, rest: list[str]
) -> None:
    command = tuple(word for word in (name, *rest) if "*" not in word) or ("x",)
    patterns = [rule[0], *rule[1]]
    is_open = patterns[-1] == "*"
    fixed = patterns[:-1] if is_open else patterns

    def matches(form: tuple[str, ...]) -> bool:
        right_length = len(form) >= len(fixed) if is_open else len(form) == len(fixed)
        return right_length and all(fnmatchcase(word, each) for word, each in zip(form, fixed, strict=False))

    expected = any(map(matches, _forms_by_the_book(command)))
    found = parse_rule(f"bash({' '.join(patterns)})", "/w", None).matches_words([Word(word) for word in command])
    assert (found == "yes") is expected, (patterns, command)


@settings(deadline=None)
@given(parts=st.lists(st.text(string.printable.replace("/", ""), min_size=1, max_size=6), min_size=1, max_size=3))
def test_a_path_written_into_a_rule_is_read_back_letter_for_letter(parts: list[str]) -> None:
    path = "/nowhere/" + "/".join(part.strip() or "x" for part in parts if part.strip() not in (".", ".."))
    path = path.rstrip("/")
    rule = parse_rule(f"view({quote_path(path)})", "/w", None)
    assert rule.matches_path(str(Path(path)))
    assert not rule.matches_path(path + "x")


def test_no_rule_takes_for_ever(bench: Bench) -> None:
    """A repository that nobody trusts may bring rules that forbid, and files that they are made for."""
    stars, many = "*a" * 30 + "b", "a" * 250
    assert parse_rule(f"bash({stars})", "/", None).matches_words([Word(many)]) == "no"
    assert not parse_rule(f"view({stars})", str(bench.workspace), None).matches_path(f"{bench.workspace}/{many}")
    deep = parse_rule(f"view({'**/a/' * 30}b)", str(bench.workspace), None)
    assert not deep.matches_path(f"{bench.workspace}{'/a' * 500}")
    assert deep.matches_path(f"{bench.workspace}{'/a' * 500}/b")
