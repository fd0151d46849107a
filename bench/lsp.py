"""What do language servers cost: the time of a run with one edit, and memory?

The same run (one `edit`, one answer of a scripted model) on a real server, with language servers switched off, with
ruff, and with ruff and a warm basedpyright, one after another in each round. Every second edit makes a type error.
Goal: basedpyright adds at most 300 ms (median); nothing is added where none is installed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from measure import noise_told, print_table, wait_quiet

from tests.e2e.home import new_home
from tests.e2e.project import Project, call, step
from tests.server.client import done
from tests.server.process import Server
from tests.support.model_control import ModelControl, model_thread

ROUNDS = 40
MODULES = 40
WARM_S = 60.0
SETTINGS = {"off": (), "ruff": ("ruff",), "basedpyright and ruff": ("ruff", "basedpyright")}
MODULE = '''"""Module {n}."""

from __future__ import annotations

import dataclasses
from m{before} import Item as Other

value: int = 0


@dataclasses.dataclass
class Item:
    name: str
    other: Other | None = None

    def describe(self, times: int) -> str:
        return ", ".join(self.name for _ in range(times))
'''
FIRST = "class Item:\n    pass\n"


class Setting:
    """A server with these language servers, and a project of typed modules."""

    def __init__(self, models: ModelControl, directory: Path, names: tuple[str, ...], server: Server) -> None:
        self.names = names
        self.project = Project(server, models, directory)
        (directory / "m0.py").write_text(FIRST)
        for n in range(1, MODULES):
            (directory / f"m{n}.py").write_text(MODULE.format(n=n, before=n - 1))
        self.took: list[float] = []
        self._line = "value: int = 0"
        self._run(step(call("view", path=f"m{MODULES - 1}.py")))
        deadline = time.monotonic() + WARM_S
        while [each["state"] for each in self.servers()] != ["ready"] * len(names):
            assert time.monotonic() < deadline, self.servers()
            time.sleep(0.1)

    def servers(self) -> list[dict[str, object]]:
        return done(self.project.client.get(f"{self.project.workspace}/lsps"))["servers"]

    def edit(self, number: int) -> float:
        line = f"value: int = {number}" if number % 2 else f'value: int = "{number}"'
        change = call("edit", path=f"m{MODULES - 1}.py", old_string=self._line, new_string=line)
        took = self._run(step(change))
        self._line = line
        return took

    def _run(self, work: dict[str, object]) -> float:
        project = self.project
        prompt, session = project.prompt(work), project.session()
        began = time.perf_counter()
        project.submit(session, prompt, prompt.replace(" ", "-"), permissions="allow")
        ended = project.ended(prompt.replace(" ", "-"))
        took = time.perf_counter() - began
        assert ended["state"] == "completed", ended
        return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds: int = parser.parse_args().rounds
    wait_quiet()
    with noise_told(), model_thread() as models, tempfile.TemporaryDirectory() as place:
        settings = {name: start(models, Path(place), name, names) for name, names in SETTINGS.items()}
        for number in range(1, rounds + 3):
            for setting in settings.values():
                took = setting.edit(number)
                if number > 2:
                    setting.took.append(took)
        show(settings)
        for setting in settings.values():
            assert setting.project.server.stop() == 0


def start(models: ModelControl, place: Path, name: str, names: tuple[str, ...]) -> Setting:
    home = new_home(models, has_titles=False).__enter__()
    config = home.config_dir / "kedge" / "config.toml"
    config.parent.mkdir(parents=True)
    known = ("basedpyright", "pyright", "ty", "ruff")
    config.write_text("".join(f"lsp.{each}.enabled = false\n" for each in known if each not in names))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {"KEDGE_AGENT__LANGUAGE_SERVERS": str(bool(names)).lower(), "PATH": path}
    server = Server(home, home.popen("serve", module="kedge", env=env))
    return Setting(models, place / name.replace(" ", "-"), names, server)


def show(settings: dict[str, Setting]) -> None:
    base = statistics.median(settings["off"].took)
    rows: list[list[str]] = []
    for name, setting in settings.items():
        p50, p95 = statistics.median(setting.took), statistics.quantiles(setting.took, n=20)[-1]
        memory = {str(each["name"]): pss_of_session(each["pid"]) for each in setting.servers()}
        own = pss_of(setting.project.server.process.pid)
        rows.append(
            [
                name,
                *(f"{each * 1e3:.0f}" for each in (p50, p95, p50 - base, p95 - base)),
                f"{own:.0f}",
                ", ".join(f"{server} {mib:.0f}" for server, mib in memory.items()) or "-",
            ]
        )
    columns = ["", "p50 ms", "p95 ms", "added, p50", "p95 - p50 off", "Kedge's server MiB", "language servers MiB"]
    print_table(f"A run with one edit in {MODULES} modules, {len(settings['off'].took)} rounds", columns, rows)


def pss_of(pid: int) -> float:
    """Return the MiB of memory of a process, its part of shared pages counted."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0


def pss_of_session(leader: object) -> float:
    total = 0.0
    for each in Path("/proc").iterdir():
        if each.name.isdecimal():
            try:
                if int((each / "stat").read_text().rpartition(")")[2].split()[3]) == leader:
                    total += pss_of(int(each.name))
            except OSError:
                continue
    return total


if __name__ == "__main__":
    main()
