"""How soon does the model inside say its first word, cold and warm, and what do the server and its child take?

The baseline is the same prompt to a warm server whose child holds the model: everything else is what starting costs.
The starter is fetched once, into the cache of the tests.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from _home import PYTHON, ROOT, Server, await_answer, started
from measure import MIB, Samples, noise_told, print_latencies, print_table, rss_of, wait_quiet

from kedge.protocol.address import UnixAddress

ANSWERS = 10
COLD = 5
PROMPT = "What is 2+2?"
LONG = "Write a long story about the sea, the ships on it, and the people in them."


class Place:
    """A home without a key, which has the starter already."""

    def __init__(self, directory: Path, starter: str) -> None:
        self.directory = directory
        (directory / "run").mkdir(mode=0o700)
        (directory / "data" / "models").mkdir(parents=True)
        (directory / "data" / "models" / "starter.gguf").symlink_to(starter)
        (directory / "workspace").mkdir()

    @contextmanager
    def serve(self) -> Generator[Server]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("KEDGE_", "XDG_"))}
        paths = {"XDG_RUNTIME_DIR": str(self.directory / "run"), "KEDGE_DATA_DIR": str(self.directory / "data")}
        with started([PYTHON, "-m", "kedge", "serve"], {**kept, **paths}) as process:
            await_answer(process, self._address)
            address = self._address()
            assert address is not None
            yield Server(process.pid, address)

    def _address(self) -> UnixAddress | None:
        return next((UnixAddress(str(path)) for path in (self.directory / "run" / "kedge").glob("*.sock")), None)


class Desk:
    """One session of a client that listens."""

    def __init__(self, place: Place, server: Server) -> None:
        self._wire = server.transport()
        self._path = server.join(place.directory / "workspace")
        self._session_id: str = self._wire.request("POST", f"{self._path}/sessions", {})["id"]
        self._heard = b""
        self._pieces = server.transport().stream(f"{self._path}/events?session_id={self._session_id}")
        self.hear(b'"caught_up"')

    def ask(self, prompt: str) -> None:
        body = {"session_id": self._session_id, "prompt": prompt, "model": "local/starter"}
        self._wire.request("POST", f"{self._path}/agent", body)
        self.hear(b'"message_delta"')

    def hear(self, word: bytes) -> None:
        while word not in self._heard:
            self._heard = self._heard[-len(word) :] + next(self._pieces)
        self._heard = self._heard.partition(word)[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--answers", type=int, default=ANSWERS)
    parser.add_argument("--cold", type=int, default=COLD)
    options = parser.parse_args()
    starter = subprocess.check_output([PYTHON, "-m", "tests.models.embedded.cache"], cwd=ROOT, text=True).strip()
    wait_quiet()
    directory = Path(tempfile.mkdtemp(prefix="kedge-b-"))
    try:
        with noise_told():
            measure(Place(directory, starter), options.answers, options.cold)
    finally:
        shutil.rmtree(directory)


def measure(place: Place, answers: int, cold: int) -> None:
    warm, first = Samples("warm (baseline)"), Samples("cold: the child is started, the model loaded")
    idle = 0
    for _ in range(cold):
        with place.serve() as server:
            idle = server.rss_bytes
            desk = Desk(place, server)
            with first.timed():
                desk.ask(PROMPT)
            desk.hear(b'"run_complete"')
    with place.serve() as server:
        for _ in range(answers + 1):
            desk = Desk(place, server)
            with warm.timed():
                desk.ask(PROMPT)
            desk.hear(b'"run_complete"')
        warm.seconds.pop(0)
        loaded = [f"{server.rss_bytes / MIB:.0f}", f"{rss_of(child_of(server)) / MIB:.0f}"]
        speed = tokens_a_second(Desk(place, server))
    print_latencies("prompt to the first word", [warm, first])
    before = ["idle, nothing loaded", f"{idle / MIB:.0f}", "-"]
    print_table("memory, MiB", ["", "server", "child"], [before, [f"after {answers} answers", *loaded]])
    print_table("a long answer", ["", "words/s"], [["deltas at the client", f"{speed:.0f}"]])


def tokens_a_second(desk: Desk, count: int = 200) -> float:
    desk.ask(LONG)
    began = time.perf_counter()
    for _ in range(count):
        desk.hear(b'"message_delta"')
    return count / (time.perf_counter() - began)


def child_of(server: Server) -> int:
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    return max(map(int, children), key=rss_of)


if __name__ == "__main__":
    main()
