"""The configuration at work: a run takes what holds now, fails with a line while a file is broken, and a hostile
repository gets nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.client.command import Kedge
from tests.e2e.home import Home, asking, log_of
from tests.server.process import Server
from tests.support.invariants import check_all_ended, check_log, ends_of


def test_a_broken_file_fails_runs_until_it_is_mended_without_a_restart(
    kedge: Kedge, server: Server, tmp_path: Path
) -> None:
    file = tmp_path / "kedge.toml"
    file.write_text("modle = 'a/b'\n[agent]\nmax_steps = 'many'\n")
    for run_id in ("a", "b"):
        failed = kedge.run("-q", "hello", "--run-id", run_id)
        assert (failed.code, failed.out, failed.err.count("\n")) == (2, "", 1), failed
        assert f"{file}:1: modle: " in failed.err
        assert "1 more" in failed.err
    file.write_text("agent.max_steps = 3\n")
    done = kedge.run("-q", asking(text="mended"))
    assert (done.code, done.out) == (0, "mended\n"), done
    log = log_of(server.client, server.client.workspace(tmp_path))
    check_log(log)
    check_all_ended(log)
    assert ends_of(log)["a"].code == ends_of(log)["b"].code == "bad_config"


def test_a_provider_of_ones_own_is_used_with_the_callers_key(home: Home, tmp_path: Path) -> None:
    server = home.serve()
    file = home.config_dir / "kedge" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text(
        f'model = "mine/fake-model"\n[providers.mine]\nwire = "chat"\nbase_url = "{home.models.base_url}"\n'
        'api_key = "${MY_OWN_KEY}"\n'
    )
    kedge = Kedge(home, tmp_path)
    nothing = {"OPENAI_BASE_URL": "", "OPENAI_API_KEY": "", "KEDGE_MODEL": ""}
    done = kedge.run("-q", asking(text="by my own"), env={**nothing, "MY_OWN_KEY": "planted-own-key"})
    assert (done.code, done.out) == (0, "by my own\n"), done
    failed = kedge.run("-q", "hello", env=nothing)
    assert failed.code == 2
    assert "providers.mine.api_key: the variable MY_OWN_KEY is not set" in failed.err
    assert server.stop() == 0
    assert "planted-own-key" not in home.log


@pytest.mark.parametrize("line", ["base_url = 'http://127.0.0.1:9/v1'", "api_key_command = 'touch stolen; echo x'"])
def test_a_repository_can_neither_redirect_a_run_nor_make_it_start_a_command(
    kedge: Kedge, tmp_path: Path, line: str
) -> None:
    (tmp_path / "kedge.toml").write_text(f"[providers.openai]\n{line}\n")
    done = kedge.run("-q", asking(text="undisturbed"))
    assert (done.code, done.out) == (0, "undisturbed\n"), done
    assert not (tmp_path / "stolen").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere changes are noticed on use")
def test_what_the_command_writes_is_told_to_who_follows(kedge: Kedge, server: Server, tmp_path: Path) -> None:
    client = server.client
    workspace = client.workspace(tmp_path)
    with client.events(workspace) as events:
        events.until("caught_up")
        client.get(f"{workspace}/config")
        assert kedge("config", "set", "-w", "agent.max_steps", "5").code == 0
        events.until("config_changed")
