"""The mistakes that are planted: each is a single one, a seed names its sample, and the tests decide."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutants import running
from tests.mutants.equivalent import EQUIVALENT
from tests.mutants.mutations import mutations
from tests.mutants.running import ROOT, SOURCES, TESTS, Mutant, judge, sample, stages

SOURCE = """\
def bounded(count: int) -> int:
    log.info("counting %d", 1)
    if count > 2 and not is_free:
        return 2
    self.count = count
    tell(count)
    return count
"""


def planted(what: str) -> list[str]:
    """The lines that these mutations change, as they are then."""
    lines = SOURCE.splitlines()
    found = [each.source.splitlines() for each in mutations(SOURCE) if each.what == what]
    return [after for mutated in found for before, after in zip(lines, mutated, strict=True) if before != after]


def test_each_mutation_is_one_small_mistake() -> None:
    assert planted("flipped comparison") == ["    if (count >= 2) and not is_free:"]
    assert planted("and/or") == ["    if (count > 2 or not is_free):"]
    assert planted("dropped not") == ["    if count > 2 and bool(is_free):"]
    assert planted("off by one") == ["    if count > 3 and not is_free:", "        return 3"]
    assert planted("dropped assignment") == ["    pass"]
    assert planted("dropped call") == ["    pass"], "of a log line nobody takes notice"
    assert planted("returned nothing") == ["        return None", "    return None"]
    assert planted("negated condition") == ["    if not (count > 2 and (not is_free)):"]


def test_every_mutation_of_the_core_can_be_compiled() -> None:
    for mutant in sample(0, 200, list(TESTS)):
        ast.parse(mutant.source)
        assert mutant.diff


def test_a_seed_names_its_sample() -> None:
    packages = ["feed", "engine"]
    first = sample(7, 5, packages)
    assert sample(7, 5, packages) == first
    assert sample(8, 5, packages) != first
    assert {mutant.package for mutant in sample(7, 50, packages)} == set(packages)


@pytest.mark.parametrize("package", TESTS)
def test_every_package_has_tests_that_concern_it(package: str) -> None:
    for mutant in sample(0, 3, [package]):
        for tests in stages(mutant, ROOT):
            assert all((ROOT / test).is_file() for test in tests)


def test_what_is_called_equivalent_is_in_the_sources() -> None:
    for (path, before, _after), reason in EQUIVALENT.items():
        lines = [line.strip() for line in (ROOT / SOURCES / path).read_text().splitlines()]
        assert reason
        assert before in lines or before in " ".join(lines), f"{path} has changed: {before!r}"


@pytest.mark.parametrize(
    ("after", "verdict"),
    [("answer = 43", "killed"), ("answer = 42 + 0", "survived"), ("answer = nothing", "invalid")],
)
def test_the_tests_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: str, verdict: str) -> None:
    before = "answer = 42\n"
    files = {
        "src/kedge/__init__.py": "",
        "src/kedge/feed/__init__.py": "",
        "src/kedge/feed/planted.py": before,
        "tests/feed/test_planted.py": "from kedge.feed.planted import answer\n\ndef test():\n    assert answer == 42\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(running, "TESTS", {"feed": ("feed",)})
    judged = judge(Mutant("feed/planted.py", 1, "planted", f"{after}\n", before), tmp_path)
    assert judged.verdict == verdict, judged
    assert after in judged.mutant.diff
    assert (tmp_path / "src/kedge/feed/planted.py").read_text() == before
