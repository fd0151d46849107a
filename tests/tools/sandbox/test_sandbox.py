"""A sandboxed command works as expected and stays sandboxed, also in the background."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from kedge.config.schema import SandboxConfig, SandboxMode
from kedge.tools.errors import ToolError
from kedge.tools.sandbox import kernel
from kedge.tools.sandbox.policy import SandboxUnavailable
from kedge.tools.sandbox.sandbox import Sandbox
from tests.tools.sandbox import attempts
from tests.tools.sandbox.cells import BACKENDS, PYTHON, Cell, needs_bubblewrap, needs_landlock, people

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is a sandbox only on Linux")

AUTHOR = "-c user.name=k -c user.email=k@example.com"


@pytest.fixture
async def cell(tmp_path: Path) -> AsyncGenerator[Cell]:
    cell = Cell(tmp_path, ["out"])
    yield cell
    await cell.harness.end_all()


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> SandboxMode:
    return request.param


@pytest.fixture
def sandboxed(cell: Cell, backend: SandboxMode) -> Cell:
    cell.use_sandbox(SandboxConfig(mode=backend))
    return cell


def git(directory: Path, *words: str) -> str:
    done = subprocess.run(["git", *AUTHOR.split(), *words], cwd=directory, check=True, capture_output=True, text=True)
    return done.stdout


async def test_ordinary_work_in_a_workspace_is_possible(sandboxed: Cell) -> None:
    script = f"""set -e
        mkdir -p a/b; echo one > a/x; mv a/x a/b/y; ln a/b/y hard; ln -s a link; chmod 700 a; touch -d yesterday a/b/y
        cat <<< text > /dev/null; cat <(echo sub); echo err >&2; head -c 8 /dev/urandom | wc -c
        f=$(mktemp); echo two > "$f"; mv "$f" moved; rm hard; rm -r link
        cat ~/notes; echo; pwd; {PYTHON} -I -S -c 'import subprocess; subprocess.run(["echo", "child"], check=True)'
        git init -q .; git add a moved; git {AUTHOR} commit -q -m first; git log --format=%s
    """
    output = await sandboxed.run(script)
    assert output.content.split("\n") == ["sub", "err", "8", "plain", str(sandboxed.workspace), "child", "first"]
    assert (sandboxed.workspace / "moved").read_text() == "two\n"


async def test_a_session_has_its_own_temporary_directory(sandboxed: Cell) -> None:
    await sandboxed.run("echo kept > $TMPDIR/note")
    assert (await sandboxed.run("cat $TMPDIR/note; echo $TMPDIR")).content.split() == [
        "kept",
        str(sandboxed.harness.scratch / "tmp"),
    ]
    assert (sandboxed.harness.scratch / "tmp" / "note").read_text() == "kept\n"


async def test_a_failure_mentions_the_sandbox(sandboxed: Cell) -> None:
    assert "sandbox" not in (await sandboxed.run("true")).content
    failed = await sandboxed.run(f"echo x > {sandboxed.out}/out/file; exit 7")
    assert "exit code 7" in failed.content
    assert f"it can write only below {sandboxed.workspace}, $TMPDIR, and the network can be used" in failed.text


async def test_only_the_standard_descriptors_are_inherited(sandboxed: Cell) -> None:
    secret = os.open(sandboxed.home / ".ssh" / "id", os.O_RDONLY)
    os.set_inheritable(secret, True)
    try:
        output = await sandboxed.run("ls /proc/$$/fd; true")
    finally:
        os.close(secret)
    assert output.content.split() == ["0", "1", "2"]


async def test_setuid_programs_gain_no_rights(sandboxed: Cell) -> None:
    assert (await sandboxed.run("grep NoNewPrivs /proc/self/status")).content.split() == ["NoNewPrivs:", "1"]


async def test_the_server_itself_is_not_restricted(sandboxed: Cell) -> None:
    os.mkfifo(sandboxed.workspace / "go")
    started = await sandboxed.run("read -r x < go", run_in_background=True)
    assert started.metadata is not None
    await asyncio.to_thread((sandboxed.out / "out" / "file").write_text, "by the server")
    status = Path(f"/proc/self/task/{os.getpid()}/status").read_text()
    assert "NoNewPrivs:\t0" in status
    assert "Seccomp:\t0" in status
    with people(sandboxed.root):
        pass  # sockets of every kind
    (sandboxed.workspace / "go").write_text("on\n")
    [job] = sandboxed.harness.jobs.list()
    await asyncio.wait_for(job.command.finished.wait(), 30)
    assert (sandboxed.out / "out" / "file").read_text() == "by the server"


@pytest.mark.parametrize("is_left_behind", [True, False])
async def test_a_job_stays_sandboxed(sandboxed: Cell, is_left_behind: bool) -> None:
    os.mkfifo(sandboxed.workspace / "go")
    deed = f"read -r x < go; echo evil > {sandboxed.out}/out/file; cat ~/.ssh/id; echo tried > done"
    if is_left_behind:
        await sandboxed.run(f"({deed}) & echo gone")
    else:
        await sandboxed.run(deed, run_in_background=True)
    [job] = sandboxed.harness.jobs.list()
    assert job.is_running
    await asyncio.to_thread((sandboxed.workspace / "go").write_text, "on\n")
    await asyncio.wait_for(job.command.finished.wait(), 30)
    assert (sandboxed.workspace / "done").exists()
    assert (sandboxed.out / "out" / "file").read_text() == "as it was"
    assert attempts.SECRET not in job.command.take_output()


async def test_a_command_can_time_out(sandboxed: Cell) -> None:
    output = await sandboxed.run("sleep 300", timeout=0.3)
    assert "timed out" in output.content


async def test_the_network_can_be_used_if_enabled(sandboxed: Cell) -> None:
    with people(sandboxed.root) as around:
        output = await sandboxed.run(f"exec 3<>/dev/tcp/127.0.0.1/{around['TCP']} && echo reached")
    assert output.content == "reached"


async def test_variables_of_outside_programs_are_removed(sandboxed: Cell) -> None:
    sandboxed.harness.env = {**sandboxed.harness.env, "SSH_AUTH_SOCK": "/x", "DBUS_SESSION_BUS_ADDRESS": "unix:path=/y"}
    assert (await sandboxed.run("echo $SSH_AUTH_SOCK$DBUS_SESSION_BUS_ADDRESS")).content == "(no output)"


async def test_a_configured_directory_is_writable(cell: Cell, backend: SandboxMode) -> None:
    (cell.home / ".cache").mkdir()
    cell.use_sandbox(SandboxConfig(mode=backend, writable=("~/.cache",)))
    assert (await cell.run("echo x > ~/.cache/y && cat ~/.cache/y")).content == "x"


async def test_a_usual_secret_can_be_made_readable(cell: Cell, backend: SandboxMode) -> None:
    cell.use_sandbox(SandboxConfig(mode=backend, readable=("~/.ssh",)))
    assert (await cell.run("cat ~/.ssh/id")).content == attempts.SECRET


async def test_a_hidden_path_may_appear_later(cell: Cell, backend: SandboxMode) -> None:
    """At the next command it is hidden, and with Landlock also from one that runs already."""
    cell.use_sandbox(SandboxConfig(mode=backend))
    os.mkfifo(cell.workspace / "go")
    if backend == "landlock":
        await cell.run("read -r x < go; cat ~/.aws/key ~/new", run_in_background=True)
    (cell.home / ".aws").mkdir()
    (cell.home / ".aws" / "key").write_text(attempts.SECRET)
    (cell.home / "new").write_text(attempts.SECRET)
    assert attempts.SECRET not in (await cell.run("cat ~/.aws/key")).content
    if backend == "landlock":
        await asyncio.to_thread((cell.workspace / "go").write_text, "on\n")
        [job] = cell.harness.jobs.list()
        await asyncio.wait_for(job.command.finished.wait(), 30)
        assert attempts.SECRET not in job.command.take_output()


class TestGit:
    async def test_a_worktree_commits_to_its_repository(self, cell: Cell, backend: SandboxMode) -> None:
        main = cell.out / "main"
        main.mkdir()
        git(main, "init", "-q")
        git(main, "commit", "-q", "--allow-empty", "-m", "first")
        (cell.workspace / "attempts.py").unlink()
        git(main, "worktree", "add", "-q", "--force", str(cell.workspace))
        cell.use_sandbox(SandboxConfig(mode=backend))
        output = await cell.run(
            f"echo x > new && git add new && git {AUTHOR} commit -q -m second && git log --format=%s"
        )
        assert output.content.split() == ["second", "first"]
        assert "second" in git(main, "log", "--all", "--format=%s")
        before = (main / ".git" / "config").read_text()
        await cell.run(f"git config core.pager evil; echo evil > {main}/.git/hooks/pre-commit; echo evil > {main}/x")
        assert (main / ".git" / "config").read_text() == before
        assert not (main / ".git" / "hooks" / "pre-commit").exists()
        assert not (main / "x").exists()

    async def test_a_git_pointer_without_a_pointer_back_opens_nothing(self, cell: Cell, backend: SandboxMode) -> None:
        """A sandboxed command could have written it."""
        victim = cell.out / "victim"
        for name in ("objects", "refs", "worktrees/evil"):
            (victim / name).mkdir(parents=True)
        (victim / "HEAD").write_text("ref: refs/heads/main\n")
        (victim / "worktrees" / "evil" / "gitdir").write_text(f"{cell.root}/elsewhere/.git\n")
        (cell.workspace / ".git").write_text(f"gitdir: {victim}/worktrees/evil\n")
        cell.use_sandbox(SandboxConfig(mode=backend))
        await cell.run(f"echo evil > {victim}/objects/x; echo evil > {victim}/worktrees/evil/x")
        assert not (victim / "objects" / "x").exists()
        assert not (victim / "worktrees" / "evil" / "x").exists()

    @pytest.mark.parametrize("link", [".git", ".git/hooks"])
    async def test_a_link_in_place_of_a_protected_path_is_not_followed(
        self, cell: Cell, backend: SandboxMode, link: str
    ) -> None:
        """To protect something it is mounted, and a mount follows links."""
        victim = cell.out / "victim"
        (victim / "hooks").mkdir(parents=True)
        (victim / "config").touch()
        cell.use_sandbox(SandboxConfig(mode=backend, hidden=(str(cell.out / "out"),)))
        await cell.run(f"mkdir -p $(dirname {link}); ln -s {victim} {link}; ln -s {cell.out}/out .git/config")
        deeds = (f"echo evil > {link}/new", f"echo evil > {link}/config", f"echo evil > {victim}/new")
        said = await cell.run("; ".join((*deeds, "cat .git/config/file", "echo ran")))
        assert "ran" in said.content
        assert sorted(path.name for path in victim.iterdir()) == ["config", "hooks"]
        assert (victim / "config").read_text() == ""
        assert "as it was" not in said.content

    @needs_bubblewrap
    async def test_a_command_cannot_change_what_git_runs(self, cell: Cell) -> None:
        git(cell.workspace, "init", "-q")
        (cell.workspace / ".git" / "hooks").mkdir(exist_ok=True)
        config = (cell.workspace / ".git" / "config").read_text()
        cell.use_sandbox(SandboxConfig(mode="bubblewrap"))
        for deed in (
            "echo evil > .git/hooks/pre-commit",
            "rm -rf .git/hooks",
            "mv .git/hooks h",
            "mv .git g",
            "rm .git/config",
            "git config core.fsmonitor evil",
        ):
            assert "exit code" in (await cell.run(deed)).content
        assert (cell.workspace / ".git" / "config").read_text() == config
        assert not (cell.workspace / ".git" / "hooks" / "pre-commit").exists()
        committed = await cell.run(f"echo x > y && git add y && git {AUTHOR} commit -q -m fine && git log --format=%s")
        assert committed.content == "fine"


class TestUnixSockets:
    TALK = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind('own'); s.listen();"
        " c = socket.socket(socket.AF_UNIX); c.connect('own'); print('talked')"
    )

    async def test_unix_sockets_are_denied_by_default(self, sandboxed: Cell) -> None:
        assert "talked" not in (await sandboxed.run(f'{PYTHON} -I -S -c "{self.TALK}"')).content

    @needs_bubblewrap
    async def test_with_unix_sockets_only_those_inside_are_reached(self, cell: Cell) -> None:
        cell.use_sandbox(SandboxConfig(mode="bubblewrap", unix_sockets=True))
        assert (await cell.run(f'{PYTHON} -I -S -c "{self.TALK}"')).content == "talked"
        with people(cell.root) as around:
            names = ["speak_to_a_unix_socket", "send_to_a_unix_socket_from_one_end_of_a_pair"]
            names += ["speak_to_a_unix_socket_without_a_file"] if kernel.landlock_abi() >= 6 else []
            results = await asyncio.to_thread(cell.attempt, names, around)
        assert {name: word for name, word in results.items() if not word.startswith("refused")} == {}

    @needs_landlock
    async def test_landlock_rejects_unix_sockets(self, cell: Cell) -> None:
        cell.use_sandbox(SandboxConfig(mode="landlock", unix_sockets=True))
        with pytest.raises(ToolError, match="unix_sockets needs bubblewrap"):
            await cell.run("true")


class TestHiddenInside:
    """A secret in the workspace itself."""

    @pytest.fixture
    def cell(self, cell: Cell) -> Cell:
        (cell.workspace / "deep" / "private").mkdir(parents=True)
        (cell.workspace / "deep" / "private" / "key").write_text(attempts.SECRET)
        (cell.workspace / ".env").write_text(attempts.SECRET)
        return cell

    @needs_bubblewrap
    async def test_bubblewrap_hides_a_path_in_the_workspace_that_cannot_be_renamed(self, cell: Cell) -> None:
        cell.use_sandbox(SandboxConfig(mode="bubblewrap", hidden=("deep/private", ".env")))
        for deed in (
            "cat deep/private/key .env",
            "mv deep d; cat d/private/key",
            "mv .env e; cat e",
            "cp .env e; cat e",
        ):
            assert attempts.SECRET not in (await cell.run(deed)).content
        assert attempts.SECRET not in (await cell.run("cat d/private/key e")).content
        assert (cell.workspace / "deep" / "private" / "key").exists()

    @needs_landlock
    async def test_landlock_cannot_hide_a_path_in_the_workspace(self, cell: Cell) -> None:
        cell.use_sandbox(SandboxConfig(mode="landlock", hidden=(".env",)))
        with pytest.raises(SandboxUnavailable, match=r"cannot hide .*\.env"):
            cell.harness.sandbox.prepare()

    async def test_it_is_hidden_in_mode_plan(self, cell: Cell, backend: SandboxMode) -> None:
        cell.use_sandbox(SandboxConfig(mode=backend, hidden=("deep/private", ".env")), is_planning=True)
        output = await cell.run("cat attempts.py | head -1; cat .env; cat deep/private/key")
        assert "Attempts to escape" in output.content
        assert attempts.SECRET not in output.content


async def test_a_secret_is_hidden_in_a_workspace_inside_a_hidden_directory(cell: Cell) -> None:
    """What is hidden around it does not stand for what is hidden in it."""
    sandbox = Sandbox(
        config=SandboxConfig(mode="auto", hidden=(str(cell.root), ".env")),
        directory=cell.workspace,
        scratch=cell.harness.scratch,
    )
    assert {str(cell.root), str(cell.workspace / ".env")} <= set(sandbox.make_policy().hidden)


async def test_the_root_directory_is_rejected_as_a_workspace(tmp_path: Path) -> None:
    sandbox = Sandbox(config=SandboxConfig(mode="auto"), directory=Path("/"), scratch=tmp_path / "s")
    with pytest.raises(SandboxUnavailable, match="root directory"):
        sandbox.prepare()


def test_a_directory_that_a_command_could_redirect_is_not_writable(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    (workspace / "cache").mkdir(parents=True)
    (tmp_path / "through").symlink_to(workspace / "cache")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "fine").symlink_to(tmp_path / "elsewhere")
    entries = (str(workspace / "cache"), str(tmp_path / "through"), str(tmp_path / "fine"), str(tmp_path / "missing"))
    sandbox = Sandbox(
        config=SandboxConfig(mode="auto", writable=entries), directory=workspace, scratch=tmp_path / "scratch"
    )
    root = Path(os.path.realpath(tmp_path))
    assert set(sandbox.make_policy().writable) == {str(root / "workspace"), str(root / "elsewhere")}
