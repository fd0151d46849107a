"""The read-only sandbox: ordinary reading works, secrets are hidden, and there are limits."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from kedge.config.schema import SandboxConfig, SandboxMode
from kedge.engine.processes import cgroups
from kedge.tools.process.command import Command
from kedge.tools.sandbox import bubblewrap, kernel, landlock
from kedge.tools.sandbox.policy import UNAPPROVED, Limits, SandboxUnavailable
from kedge.tools.sandbox.sandbox import Sandbox, can_sandbox_read_only
from tests.tools.sandbox import attempts, fork_bomb
from tests.tools.sandbox.cells import BACKENDS, Cell, needs_bubblewrap, needs_landlock

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is a sandbox only on Linux")

LIMIT_S = 60.0


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> SandboxMode:
    return request.param


@pytest.fixture
async def cell(tmp_path: Path, backend: SandboxMode) -> AsyncGenerator[Cell]:
    cell = Cell(tmp_path)
    cell.prepare_read_only(backend)
    yield cell
    await cell.harness.end_all()


def git(directory: Path, *words: str) -> str:
    author = ("-c", "user.name=k", "-c", "user.email=k@example.com", "-c", "protocol.file.allow=always")
    done = subprocess.run(["git", *author, *words], cwd=directory, check=True, capture_output=True, text=True)
    return done.stdout


async def run(cell: Cell, words: str, limits: Limits = UNAPPROVED, timeout_s: float | None = None) -> Command:
    """A command to its very end."""
    spec, env = cell.harness.sandbox.prepare_read_only()._replace(limits=limits), cell.harness.env
    command = await Command.start(cell.harness, words, cell.workspace, env, lambda _: None, timeout_s, spec)
    async with asyncio.timeout(LIMIT_S):
        await command.finished.wait()
    return command


def make_repository(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    git(directory, "init", "-q", "-b", "main")
    (directory / "known").write_text("one\n")
    git(directory, "add", "known")
    git(directory, "commit", "-q", "-m", "first")
    (directory / "known").write_text("two\n")


# What is typed, and what is seen. A program that a machine does not have is left out.
LOOKS = {
    "ls": "a file",
    "cat 'a file'": "text",
    "cat < 'a file'": "text",
    "head -n1 'a file' | tr a-z A-Z": "TEXT",
    "grep -rn text .": "a file:1:text",
    "rg -n text 'a file'": "1:text",
    "find . -name 'a*' -type f": "./a file",
    "find . -name deepest | xargs -n1 dirname | wc -l": "1",
    "sed -n 1p 'a file'": "text",
    "awk '{print $1}' 'a file'": "text",
    "printf 'b\\na\\n' | sort": "a\nb",
    "seq 1 200000 | sort -R -S 1M -T $TMPDIR | wc -l": "200000",
    "wc -l 'a file'": "1 a file",
    "diff <(echo a) <(echo b)": "< a",
    "cat <<'END'\nheredoc\nEND": "heredoc",
    f"cat <<'END'\n{'x' * 90_000}\nEND": "xxx",
    "cat <<< string": "string",
    "cat /dev/stdin <<< string": "string",
    "echo a | tee /dev/stderr >/dev/null": "a",
    "echo written > $TMPDIR/x && cat $TMPDIR/x": "written",
    "f=$(mktemp) && echo temporary > $f && cat $f": "temporary",
    "tar -tf archive.tar": "a file",
    "unzip -l archive.zip": "a file",
    "file 'a file'": "ASCII text",
    "echo '{\"a\": 1}' | jq .a": "1",
    "date -u +%Z": "UTC",
    "TZ=Europe/Berlin date +%Z": "CE",
    "locale": "LANG=",
    "uname -s; hostname": "Linux",
    "nproc": "",
    "head -n1 /proc/meminfo /proc/cpuinfo": "MemTotal",
    "uptime": "load average",
    "stat -c %s 'a file'": "5",
    "id -u": str(os.getuid()),
    "head -n1 /etc/passwd": "root",
    "python3 --version": "Python 3",
    'python3 -c \'import json, ssl, sqlite3, subprocess; print(subprocess.check_output(["echo", "child"]))\'': "child",
    "pip --version": "pip ",
    "node --version": "v",
    "cargo --version": "cargo ",
    "git --version": "git version",
    "bash -c 'echo nested'": "nested",
    "sleep 0.01 & wait && echo waited": "waited",
    "timeout 20 echo intime": "intime",
    "cd deep/a && pwd": "deep/a",
    "kill -0 $$ && echo alive": "alive",
}


async def test_ordinary_reading_is_possible(cell: Cell, backend: SandboxMode) -> None:
    cell.harness.env = {**cell.harness.env, "HOME": str(Path("~").expanduser()), "LANG": "C.UTF-8"}
    cell.prepare_read_only(backend)
    (cell.workspace / "a file").write_text("text\n")
    (cell.workspace / "/".join(["deep", *"abcdefghij" * 5])).mkdir(parents=True)
    (cell.workspace / "/".join(["deep", *"abcdefghij" * 5, "deepest"])).touch()
    for kind in ("tar", "zip"):
        shutil.make_archive(str(cell.workspace / "archive"), kind, cell.workspace, "a file")
    missing = {name for name in ("rg", "jq", "unzip", "file", "node", "cargo", "pip") if shutil.which(name) is None}
    failed = dict[str, str]()
    for command, seen in LOOKS.items():
        if not missing & set(command.split()):
            output = (await cell.run(command)).content
            if seen not in output or ("sandbox" in output and "diff" not in command):
                failed[command[:80]] = output[:500]
    assert failed == {}


class TestGit:
    LOOKS = (
        "git status --short",
        "git log --oneline -p",
        "git diff",
        "git show --stat",
        "git blame known",
        "git branch -a",
        "git rev-parse HEAD",
        "git ls-files",
        "git grep one HEAD",
    )

    async def looks(self, cell: Cell) -> dict[str, str]:
        return {command: (await cell.run(command)).content for command in self.LOOKS}

    async def check(self, cell: Cell) -> None:
        said = await self.looks(cell)
        assert {command: text for command, text in said.items() if "exit code" in text} == {}
        assert said["git status --short"] == " M known"
        assert "first" in said["git log --oneline -p"]
        assert "+two" in said["git diff"]

    async def test_a_repository_can_be_read(self, cell: Cell) -> None:
        make_repository(cell.workspace)
        (cell.workspace / ".gitignore").write_text("attempts.py\n.gitignore\n")
        index = (cell.workspace / ".git" / "index").read_bytes()
        await self.check(cell)
        assert (cell.workspace / ".git" / "index").read_bytes() == index

    async def test_a_worktree_can_be_read(self, cell: Cell) -> None:
        make_repository(cell.out / "main")
        (cell.workspace / "attempts.py").unlink()
        git(cell.out / "main", "worktree", "add", "-q", "--force", str(cell.workspace))
        (cell.workspace / "known").write_text("two\n")
        await self.check(cell)
        assert "exit code" in (await cell.run(f"cat {cell.out}/main/known")).content  # of the other worktree nothing

    async def test_a_submodule_can_be_read(self, cell: Cell, backend: SandboxMode) -> None:
        make_repository(cell.out / "origin")
        make_repository(cell.root / "outer")
        git(cell.root / "outer", "submodule", "add", "-q", str(cell.out / "origin"), "inner")
        shutil.rmtree(cell.workspace)
        (cell.root / "outer" / "inner").rename(cell.root / "moved")
        (cell.root / "moved").rename(cell.root / "outer" / "inner")
        cell.harness.directory = cell.workspace = cell.root / "outer" / "inner"
        cell.prepare_read_only(backend)
        (cell.workspace / "known").write_text("two\n")
        await self.check(cell)

    async def test_a_directory_of_a_repository_can_be_read(self, cell: Cell, backend: SandboxMode) -> None:
        make_repository(cell.root / "whole")
        (cell.root / "whole" / "part").mkdir()
        (cell.root / "whole" / "part" / "known").write_text("one\n")
        git(cell.root / "whole", "add", ".")
        git(cell.root / "whole", "commit", "-q", "-m", "second")
        (cell.root / "whole" / "part" / "known").write_text("two\n")
        cell.harness.directory = cell.workspace = cell.root / "whole" / "part"
        cell.prepare_read_only(backend)
        said = await self.looks(cell)
        assert {command: text for command, text in said.items() if "exit code" in text} == {}
        assert said["git status --short"] == " M known"
        assert "+two" in said["git diff"]

    async def test_a_git_pointer_without_a_pointer_back_opens_nothing(self, cell: Cell) -> None:
        """Else a repository could show any other one of the user's."""
        make_repository(cell.out / "private")
        (cell.workspace / ".git").write_text(f"gitdir: {cell.out}/private/.git\n")
        output = (await cell.run("git log; cat .git")).content
        assert "first" not in output
        assert "gitdir: " in output

    async def test_a_repository_of_another_user_above_is_not_readable(self, cell: Cell) -> None:
        make_repository(cell.root)
        if os.geteuid() == 0:
            os.chown(cell.root / ".git", 65534, 65534)
            assert "plain" not in (await cell.run("cat ../beside")).content
        os.chown(cell.root / ".git", os.geteuid(), os.getegid())

    async def test_the_repository_of_the_home_is_not_readable(self, cell: Cell, backend: SandboxMode) -> None:
        make_repository(cell.home)
        cell.harness.directory = cell.workspace = cell.home / "project"
        cell.workspace.mkdir()
        cell.prepare_read_only(backend)
        assert "first" not in (await cell.run("git log")).content

    async def test_the_users_git_settings_apply_and_credentials_stay_hidden(self, cell: Cell) -> None:
        make_repository(cell.workspace)
        (cell.home / ".gitconfig").write_text(
            "[include]\n  path = .gitconfig-work\n[alias]\n  hello = log --format=%s\n"
        )
        (cell.home / ".gitconfig-work").write_text("[log]\n  date = iso\n")
        (cell.home / ".git-credentials").write_text(attempts.SECRET)
        assert (await cell.run("git hello; git config log.date")).content == "first\niso"
        assert attempts.SECRET not in (await cell.run("cat ~/.git-credentials")).content
        # Written anew it is another file: the next command still reads it.
        (cell.home / "new").write_text("[alias]\n  hello = log --format=again-%s\n")
        (cell.home / "new").rename(cell.home / ".gitconfig")
        assert (await cell.run("git hello")).content == "again-first"

    async def test_programs_that_a_repository_names_are_not_run(self, cell: Cell) -> None:
        make_repository(cell.workspace)
        (cell.workspace / "evil").write_text("#!/bin/sh\necho planted >&2\n")
        (cell.workspace / "evil").chmod(0o755)
        git(cell.workspace, "config", "core.fsmonitor", f"{cell.workspace}/evil")
        git(cell.workspace, "config", "core.pager", f"{cell.workspace}/evil")
        assert "planted" not in (await cell.run("git status; git log")).content


class TestReading:
    async def test_an_approved_path_is_readable_but_not_writable(self, cell: Cell, backend: SandboxMode) -> None:
        assert "plain" not in (await cell.run("cat ~/notes")).content
        cell.prepare_read_only(backend, cell.home / "notes")
        assert (await cell.run("cat ~/notes")).content == "plain"
        assert "exit code" in (await cell.run("echo x > ~/notes")).content
        assert (cell.home / "notes").read_text() == "plain"

    async def test_an_approved_home_does_not_show_its_secrets(self, cell: Cell, backend: SandboxMode) -> None:
        cell.prepare_read_only(backend, cell.home)
        output = (await cell.run("cat ~/notes ~/.ssh/id")).content
        assert "plain" in output
        assert attempts.SECRET not in output

    async def test_directories_above_a_home_are_not_readable(self, cell: Cell, backend: SandboxMode) -> None:
        cell.prepare_read_only(backend, cell.root, Path("/"))
        assert "plain" not in (await cell.run("cat ~/notes")).content

    async def test_kedges_own_files_are_hidden_in_the_workspace_too(self, cell: Cell, backend: SandboxMode) -> None:
        cell.data = cell.workspace / ".data"
        cell.data.mkdir()
        (cell.data / "kedge.db").write_text(attempts.SECRET)
        (cell.workspace / "shown").write_text("shown")
        cell.prepare_read_only(backend)
        output = (await cell.run("cat shown .data/kedge.db")).content
        assert "shown" in output
        assert attempts.SECRET not in output

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root has files of others")
    async def test_root_reads_a_private_workspace_of_another_user_and_nothing_else_of_theirs(
        self, cell: Cell, backend: SandboxMode
    ) -> None:
        (cell.workspace / "theirs").write_text("theirs")
        for path in (cell.workspace / "theirs", cell.workspace):
            path.chmod(0o700)
            os.chown(path, 65534, 65534)
        cell.prepare_read_only(backend)
        output = (await cell.run("cat theirs; cat /etc/shadow ~/notes; echo x > theirs; rm theirs")).content
        assert output.startswith("theirs")
        assert "root:" not in output
        assert "plain" not in output
        assert (cell.workspace / "theirs").read_text() == "theirs"

    async def test_saved_outputs_of_the_session_can_be_read(self, cell: Cell) -> None:
        cell.harness.scratch.mkdir(parents=True, exist_ok=True)
        (cell.harness.scratch / "output").write_text("saved")
        assert (await cell.run(f"cat {cell.harness.scratch}/output")).content == "saved"

    async def test_a_toolchain_in_the_home_works_and_its_credentials_are_hidden(
        self, cell: Cell, backend: SandboxMode
    ) -> None:
        tool = cell.home / ".nvm" / "versions" / "node" / "v1"
        for name in ("bin", "lib"):
            (tool / name).mkdir(parents=True)
        (cell.home / ".nvm" / ".npmrc").write_text(attempts.SECRET)
        (cell.home / ".cargo" / "bin").mkdir(parents=True)
        (cell.home / ".cargo" / "credentials.toml").write_text(attempts.SECRET)
        (cell.home / "project" / "bin").mkdir(parents=True)
        (cell.home / "project" / ".env").write_text(attempts.SECRET)
        (tool / "lib" / "words").write_text("from the library")
        for program in (tool / "bin" / "tool", cell.home / ".cargo" / "bin" / "other", cell.home / "project/bin/third"):
            program.write_text(f"#!/bin/sh\ncat {tool}/lib/words\n")
            program.chmod(0o755)
        path = f"{tool}/bin:{cell.home}/.cargo/bin:{cell.home}/project/bin:{cell.harness.env['PATH']}"
        cell.harness.env = {**cell.harness.env, "PATH": path}
        cell.prepare_read_only(backend)
        assert (await cell.run("tool; other; third")).content == "from the library" * 3
        output = await cell.run("cat ~/.nvm/.npmrc ~/.cargo/credentials.toml ~/project/.env ~/notes")
        assert attempts.SECRET not in output.content
        assert "plain" not in output.content

    async def test_a_path_entry_that_is_the_home_does_not_show_it(self, cell: Cell, backend: SandboxMode) -> None:
        cell.harness.env = {**cell.harness.env, "PATH": f"{cell.home}:{cell.root}:{cell.harness.env['PATH']}"}
        cell.prepare_read_only(backend)
        assert "plain" not in (await cell.run("cat ~/notes")).content


class TestEnvironment:
    async def test_variables_with_credentials_or_programs_are_removed(self, cell: Cell) -> None:
        (cell.workspace / "rc").write_text("echo sourced")
        cell.harness.env = {
            **cell.harness.env,
            "MY_API_KEY": "k",
            "URL": "https://u:pw@host/",
            "BASH_ENV": "rc",
            "PLAIN": "p",
        }
        output = (await cell.run("env; echo $PLAIN")).content
        assert output.endswith("\np")
        for gone in ("MY_API_KEY", "pw@host", "sourced", "BASH_ENV"):
            assert gone not in output

    async def test_programs_of_the_workspace_are_not_found_by_their_names(self, cell: Cell) -> None:
        (cell.workspace / "bin").mkdir()
        for name in ("ls", "bash"):
            (cell.workspace / "bin" / name).write_text("#!/bin/sh\necho planted\n")
            (cell.workspace / "bin" / name).chmod(0o755)
        cell.harness.env = {**cell.harness.env, "PATH": f"bin:{cell.workspace}/bin:{cell.harness.env['PATH']}"}
        assert "planted" not in (await cell.run("ls")).content


class TestTemporaryDirectory:
    async def test_each_command_has_its_own_and_it_is_removed(self, cell: Cell) -> None:
        first = await run(cell, "echo x > $TMPDIR/x; echo $TMPDIR")
        second = await run(cell, "ls $TMPDIR; echo $TMPDIR")
        directories = [Path(command.take_output().strip()) for command in (first, second)]
        assert directories[0] != directories[1]
        assert {directory.parent for directory in directories} == {cell.harness.scratch / "unapproved-tmp"}
        assert list((cell.harness.scratch / "unapproved-tmp").iterdir()) == []

    async def test_the_directory_of_another_command_is_not_writable(self, cell: Cell) -> None:
        other = cell.harness.scratch / "unapproved-tmp" / "other"
        other.mkdir(parents=True)
        assert "exit code" in (await cell.run(f"echo x > {other}/x")).content
        assert list(other.iterdir()) == []

    async def test_it_is_removed_when_a_command_could_not_be_started(self, cell: Cell) -> None:
        spec = cell.harness.sandbox.prepare_read_only()
        (cell.workspace / "gone").mkdir()
        gone = cell.workspace / "gone"
        gone.rmdir()
        with pytest.raises(Exception, match="could not be started"):
            await Command.start(cell.harness, "true", gone, cell.harness.env, print, None, spec)
        assert list((cell.harness.scratch / "unapproved-tmp").iterdir()) == []


class TestLimits:
    async def test_memory_is_bounded(self, cell: Cell) -> None:
        limits = Limits(data_bytes=64 * 1024 * 1024, default_timeout_s=LIMIT_S)
        command = await run(cell, "x=aaaaaaaa; while :; do x=$x$x; done", limits)
        assert not command.timed_out
        assert "cannot allocate" in command.take_output()

    async def test_files_are_bounded(self, cell: Cell) -> None:
        command = await run(cell, "head -c 5000 /dev/zero > $TMPDIR/x; wc -c < $TMPDIR/x", Limits(file_bytes=1000))
        assert "1000" in command.take_output().split()

    async def test_time_is_bounded_also_for_background_processes(self, cell: Cell) -> None:
        command = await run(cell, "sleep 300 & setsid sleep 300 & echo left", Limits(default_timeout_s=0.5))
        assert command.timed_out
        assert command.survivors == []
        assert command.outcome == "timed out (0 s without approval)"

    async def test_a_longer_time_cannot_be_asked_for(self, cell: Cell) -> None:
        command = await run(cell, "sleep 300", Limits(max_timeout_s=0.5), timeout_s=3600)
        assert command.timed_out

    async def test_no_core_is_dumped(self, cell: Cell) -> None:
        assert (await cell.run("ulimit -c")).content == "0"


def test_a_fork_bomb_is_bounded() -> None:
    """For users other than root, whose processes the kernel does not count."""
    words = [sys.executable, "-m", fork_bomb.__name__]
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (done.stdout, done.stderr) == ("bounded\n", "")


def test_a_control_group_is_limited_as_far_as_its_controllers_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With files in the place of the kernel's: the machine of a test rarely delegates them."""
    (tmp_path / "pids.max").write_text("max\n")
    monkeypatch.setitem(cgroups._groups, "mark", tmp_path)
    cgroups.limit("mark", processes=7, memory_bytes=1000)
    cgroups.limit("another", processes=7, memory_bytes=1000)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"pids.max": "7ax\n"}


class TestDescription:
    async def test_a_failure_mentions_the_sandbox_and_how_to_ask(self, cell: Cell) -> None:
        assert "sandbox" not in (await cell.run("true")).content
        failed = (await cell.run("touch x")).text
        assert "it ran in the read-only sandbox" in failed
        assert "unsandboxed: true" in failed

    async def test_a_job_that_fails_mentions_it_too(self, cell: Cell) -> None:
        gate = cell.harness.directory / "gate"
        os.mkfifo(gate)
        for code, is_told in ((0, False), (3, True)):
            command = f"read -r x < gate; exit {code}"
            started = await cell.harness.call("bash", command=command, run_in_background=True)
            job_id: str = (started.metadata or {})["job_id"]
            await asyncio.to_thread(gate.write_text, "go\n")
            ended = await cell.harness.call("job_output", job_id=job_id, wait=20)
            assert ("read-only sandbox" in ended.text) == is_told

    def test_in_mode_plan_a_failure_does_not_suggest_running_unsandboxed(self, tmp_path: Path) -> None:
        sandbox = Sandbox(
            config=SandboxConfig(), directory=tmp_path, scratch=tmp_path / "s", is_planning=True, env=os.environ
        )
        spec = sandbox.prepare()
        assert spec is not None
        assert "unsandboxed" not in spec.description
        assert "mode plan" in spec.description


class TestBackends:
    def sandbox(self, tmp_path: Path, mode: SandboxMode = "off") -> Sandbox:
        return Sandbox(
            config=SandboxConfig(mode=mode), directory=tmp_path, scratch=tmp_path / "scratch", env=os.environ
        )

    @needs_landlock
    @needs_bubblewrap
    def test_landlock_comes_first_whatever_is_configured(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for mode in ("off", "auto", "bubblewrap"):
            assert self.sandbox(tmp_path, mode).prepare_read_only().backend == "landlock"
        monkeypatch.setattr(kernel, "landlock_abi", lambda: 5)
        assert self.sandbox(tmp_path).prepare_read_only().backend == "bubblewrap"  # it does not know signals
        monkeypatch.undo()
        monkeypatch.setattr(landlock, "find_problem", lambda: "not today")
        assert self.sandbox(tmp_path).prepare_read_only().backend == "bubblewrap"
        assert can_sandbox_read_only()

    def test_a_missing_sandbox_is_reported(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(landlock, "find_problem", lambda: "no Landlock")
        monkeypatch.setattr(bubblewrap, "find_problem", lambda: "no bwrap")
        assert not can_sandbox_read_only()
        with pytest.raises(SandboxUnavailable, match="no Landlock; no bwrap"):
            self.sandbox(tmp_path).prepare_read_only()

    @pytest.mark.parametrize("directory", ["/", "/proc/self", "/dev"])
    def test_the_root_directory_is_rejected_as_a_workspace(self, tmp_path: Path, directory: str) -> None:
        sandbox = Sandbox(config=SandboxConfig(), directory=Path(directory), scratch=tmp_path, env=os.environ)
        with pytest.raises(SandboxUnavailable, match="root directory"):
            sandbox.prepare_read_only()
