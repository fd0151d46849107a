"""What does it cost to see what a command changed, in a tree of 50,000 files; and to keep the version before an edit?

The baseline is `git status` in the same tree. Goals: a look at an unchanged tree within 5x of it (git uses
several threads), the first one within 20x where git knows the files; an edit at most 5 ms longer.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from measure import Samples, noise_told, print_latencies, print_table, wait_quiet

from kedge.engine.concurrency import Tasks
from kedge.engine.files.change_log import Author
from kedge.engine.files.recorder import FileRecorder
from kedge.engine.processes.registry import ProcessRegistry
from kedge.files.versions import Versions
from kedge.protocol.runs import Submission
from kedge.store.sqlite.store import SqliteStore
from kedge.tools.text.text_file import replace_file

FILES = 50_000
ROUNDS = 5
LINES = 60  # of a file: about 2 KB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=FILES)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kedge-b-") as name:
        directory = Path(name).resolve()
        plant(directory / "tree", options.files)
        wait_quiet()
        with noise_told():
            looks(directory, options.files, options.rounds)
            asyncio.run(edits(directory, options.rounds * 20))


def plant(root: Path, files: int) -> None:
    for i in range(files):
        where = root / f"src/d{i // 500}/e{i // 50 % 10}"
        if i % 50 == 0:
            where.mkdir(parents=True, exist_ok=True)
        path = where / f"x{i}.py"
        path.write_text("".join(f"def f{i}_{line}(): return {i * line}\n" for line in range(LINES)))
        os.utime(path, (1_700_000_000, 1_700_000_000))
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=b", "-c", "user.email=b", "commit", "-q", "-m", "b"]):
        subprocess.run(["git", *words], cwd=root, check=True)


def looks(directory: Path, files: int, rounds: int) -> None:
    root = directory / "tree"
    cases = {
        name: Samples(name)
        for name in ("git status", "first look", "unchanged", "one changed", "after a restart", "first, without git")
    }
    status(root)
    for i in range(rounds):
        with cases["git status"].timed():
            status(root)
        data = directory / f"data{i}"
        data.mkdir()
        versions = Versions(data)
        timed(cases["first look"], versions, root)
        timed(cases["unchanged"], versions, root)
        (root / "src/d0/e0/x1.py").write_text(f"changed {i}\n")
        timed(cases["one changed"], versions, root)
        versions.close()
        versions = Versions(data)
        timed(cases["after a restart"], versions, root)
        versions.close()
        shutil.rmtree(data)
    versions = Versions(directory)
    (root / ".git").rename(directory / "git")
    timed(cases["first, without git"], versions, root)
    size = versions.blobs.size_bytes
    versions.close()
    print_latencies(f"a look at {files} files, {rounds} rounds", list(cases.values()))
    print(f"  all contents without git: {size >> 20} MiB on the disk")


def status(root: Path) -> None:
    subprocess.run(["git", "status", "--porcelain"], cwd=root, check=True, capture_output=True)


def timed(samples: Samples, versions: Versions, root: Path) -> None:
    with samples.timed():
        versions.trees.scan(os.fsencode(root), os.environ, 2**32)
        versions.trees.save(os.fsencode(root))


async def edits(directory: Path, rounds: int) -> None:
    """A file of 20 KB is replaced, with and without its version kept."""
    root, data = directory / "edits", directory / "data"
    root.mkdir()
    store = SqliteStore.open(data)
    workspace = (await store.open_workspace(str(root))).workspace
    session = await store.create_session(workspace.id, "")
    await store.accept(workspace.id, "run", Submission(session_id=session.id, prompt="edit"))
    await store.start(workspace.id, session.id)
    versions = Versions(data)
    recorder = FileRecorder(store, versions, lambda _: root, Tasks(), ProcessRegistry(store, 2.0, 1.0))
    author, path = Author(workspace.id, "run", root), root / "file"
    path.write_bytes(b"begin")
    plain, kept = Samples("replace"), Samples("replace, version kept")
    for i in range(rounds):
        contents = [f"{way} {i} {'x' * 20_000}".encode() for way in range(2)]
        with plain.timed():
            await asyncio.to_thread(replace_file, path, contents[0], path.stat(), "file")
        with kept.timed():
            async with recorder.record_change(author, path, contents[1], (1, 1)):
                await asyncio.to_thread(replace_file, path, contents[1], path.stat(), "file")
    versions.close()
    await store.close()
    more = f"{(kept.p50 - plain.p50) * 1e3:.2f}"
    rows = [[s.name, f"{s.best * 1e3:.2f}", f"{s.p50 * 1e3:.2f}"] for s in (plain, kept)]
    print_table(f"an edit, {more} ms longer", ["", "best ms", "p50 ms"], rows)


if __name__ == "__main__":
    main()
