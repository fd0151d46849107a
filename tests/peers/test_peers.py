"""The comparison with peers: everybody is in its tables, and a peer counts only where it did the work."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from bench.peers import page
from bench.peers.known import PEERS
from bench.peers.table import Cell, Row, tables

ROOT = Path(__file__).parents[2]
LIMIT_S = 170.0


@pytest.fixture
def peers() -> Generator[Path]:
    """Where they are kept. Its name is short, because that of a socket below it may have about a hundred characters."""
    with tempfile.TemporaryDirectory(prefix="kp-") as directory:
        yield Path(directory)


def compare(cache: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.peers.compare", *args],
        cwd=ROOT,
        env={**os.environ, "KEDGE_PEERS": str(cache)},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )


def lines_of(text: str, title: str) -> dict[str, list[str]]:
    """The cells of a table, by the peer."""
    body = text.split(f"**{title}**")[1].split("**")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines() if line.startswith("|")]
    return {row[0]: row for row in rows[2:]}


@pytest.mark.timeout(180)  # some twenty processes, one after the other
def test_a_comparison_tells_of_everybody_and_counts_only_work_that_was_done(peers: Path, tmp_path: Path) -> None:
    told_in = tmp_path / "page.md"
    told_in.write_text(f"# Before\n\n{page.BEGIN}\nyesterday\n{page.END}\n\nAfter.\n")
    few = ("--rounds", "1", "--warm-up", "0", "--patience", "0", "--rows", "version,run,tool")
    done = compare(peers, *few, "--write", str(told_in))
    assert done.returncode == 0, done.stderr
    text = done.stdout
    assert "good 7.8.9" in text
    assert "not compared: absent 7.8.9." in text

    for title in ("`--version`", "One-shot run, cold", "One-shot run, warm", "CPU of a one-shot run, cold"):
        row = lines_of(text, title)
        assert list(row) == ["kedge", "good", "wrong", "bad", "lazy"]
        assert row["kedge"][3:6] == ["1.00", "1.00", "1 of 1"], done.stderr
        assert row["good"][5] == "1 of 1"
        assert float(row["good"][1]) > 0
    run = lines_of(text, "One-shot run, cold")
    assert run["wrong"][1:6] == ["-", "-", "-", "-", "0 of 1"]
    assert run["wrong"][7] == "failed: exit 0 without FAKE-ANSWER-OK: something else"
    assert run["bad"][5] == "0 of 1"
    assert run["bad"][7] == "failed: exit 3: I have no wheels"
    tool = lines_of(text, "Run with one tool round, cold")
    assert [tool[name][5] for name in ("kedge", "good", "lazy")] == ["1 of 1", "1 of 1", "0 of 1"], done.stderr
    assert "THE-FILE-WAS-NOT-READ" in tool["lazy"][7]
    assert lines_of(text, "Run with one tool round, warm")["good"][7] == "no server for its runs: as cold"

    written = told_in.read_text()
    assert written.startswith(f"# Before\n\n{page.BEGIN}\n\n")
    assert written.endswith(f"{page.END}\n\nAfter.\n")
    assert text.strip() in written
    assert "yesterday" not in written
    assert not list((peers / "homes").iterdir())  # nothing is left


def test_who_cannot_be_installed_is_told_why(peers: Path) -> None:
    done = compare(peers, "install", "absent")
    assert done.returncode == 1
    assert done.stderr.strip() == "absent needs Python 1.0, which is neither on PATH nor one of pyenv's"


def test_a_peer_or_a_row_that_nobody_knows_is_refused(peers: Path) -> None:
    assert "no peer 'nobody'" in compare(peers, "--only", "nobody").stderr
    assert "no row 'speed'" in compare(peers, "--rows", "speed").stderr


def test_a_page_without_a_place_for_the_tables_is_refused_before_anything_is_measured(
    peers: Path, tmp_path: Path
) -> None:
    told_in = tmp_path / "page.md"
    told_in.write_text(f"{page.END}\n{page.BEGIN}\n")
    done = compare(peers, "--write", str(told_in))
    assert done.returncode == 2
    assert f"{told_in} has no place for the tables" in done.stderr
    assert told_in.read_text() == f"{page.END}\n{page.BEGIN}\n"


def test_the_page_has_every_peer_with_its_version() -> None:
    told = (ROOT / "docs" / "benchmarks.md").read_text()
    assert [peer.name for peer in PEERS if f"| {peer.name} | {peer.version} |" not in told] == []
    page.around(ROOT / "docs" / "benchmarks.md")  # and a place for the tables


def test_a_ratio_is_to_kedge_and_a_peer_without_samples_has_none() -> None:
    row = Row("Time", "s")
    text = tables(
        [
            Cell(row, "kedge", [2.0, 4.0, 3.0], [0.5]),
            Cell(row, "other", [9.0, 6.0], failures=["a | b", "c", "d", "c"]),
            Cell(row, "none", words="cannot"),
        ]
    )
    assert "| kedge | 2.000 | 3.000 | 1.00 | 1.00 | 3 of 3 | 0.50 |  |" in text
    assert (
        r"| other | 6.000 | 7.500 | 3.00 | 2.50 | 2 of 6 | - | failed: a \| b; failed: c; and 1 other reasons |" in text
    )
    assert "| none | - | - | - | - | - | - | cannot |" in text


def test_a_question_without_numbers_is_answered_in_words() -> None:
    text = tables([Cell(Row("Lost"), "kedge", words="nothing"), Cell(Row("Lost"), "other", failures=["gone"])])
    assert "| kedge | nothing |\n| other | failed: gone |" in text
