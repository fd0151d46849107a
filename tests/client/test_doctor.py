"""`kedge doctor` as a process: its findings, its exit code, and that it starts nothing and shows no key."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.client.command import Kedge
from tests.server.process import Place
from tests.store.test_upgrade import make_old_store
from tests.support.model_control import ModelControl
from tests.support.model_server import HOST

RIGHT, WRONG = "right.planted.key.0001", "wrong.planted.key.0002"
VARIABLES = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "KEDGE_MODEL")
NO_KEYS: dict[str, str] = dict.fromkeys(VARIABLES, "")
STARTER = {**NO_KEYS, "KEDGE_MODEL": "local/starter"}


@pytest.fixture
def doctor(place: Place, tmp_path: Path) -> Kedge:
    workspace = tmp_path / "project"
    workspace.mkdir()
    return Kedge(place, workspace)


def test_on_a_fresh_machine_it_finds_all_that_a_run_needs_and_starts_nothing(doctor: Kedge) -> None:
    done = doctor("doctor", env=STARTER)
    assert (done.code, done.err) == (0, ""), done
    assert f"ok    data directory {doctor.place.data_dir} (created on first use)" in done.out
    assert "ok    model local/starter: " in done.out
    assert "note  " in done.out
    assert "ok    programs: git, bash, ripgrep" in done.out
    assert "sandbox: " in done.out
    assert doctor.server_pid() is None
    assert not doctor.place.data_dir.exists()


def test_it_names_the_command_that_installs_the_model_inside(doctor: Kedge, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['xllamacpp'] = None")
    done = doctor("doctor", env={**STARTER, "PYTHONPATH": str(tmp_path)})
    assert done.code == 1
    assert "FAIL  model local/starter: " in done.out
    assert "pip install 'kedge[local]'" in done.out


def test_a_key_is_tried_and_shown_to_nobody_else(doctor: Kedge, model_control: ModelControl) -> None:
    model_control.accept_keys(RIGHT)
    env = {**NO_KEYS, "OPENAI_BASE_URL": model_control.base_url, "NO_PROXY": HOST}
    right = doctor("doctor", env={**env, "OPENAI_API_KEY": RIGHT})
    assert right.code == 0, right
    wrong = doctor("doctor", env={**env, "OPENAI_API_KEY": WRONG})
    assert wrong.code == 1
    assert "OPENAI_API_KEY" in wrong.out
    assert "kedge login openai" in wrong.out
    offline = doctor("doctor", "--offline", env={**env, "OPENAI_API_KEY": WRONG})
    assert offline.code == 0
    assert not any(key in f"{done.out}{done.err}" for done in (right, wrong, offline) for key in (RIGHT, WRONG))


def test_a_repository_cannot_lend_it_its_modules(doctor: Kedge) -> None:
    """Its helpers are processes of their own, and Python looks for modules in the directory where it is started."""
    for name in ("json", "kedge", "ctypes"):
        (doctor.workspace / f"{name}.py").write_text(f"open('{doctor.workspace}/was-run', 'w')\n")
    command = [sys.executable, "-P", "-m", "kedge", "doctor"]  # as the installed command, which is not in this place
    done = subprocess.run(command, cwd=doctor.workspace, env={**doctor.place.env, **STARTER}, check=False)
    assert done.returncode == 0
    assert not (doctor.workspace / "was-run").exists()


def test_it_knows_the_configuration_and_what_of_it_does_not_count(doctor: Kedge) -> None:
    file = doctor.workspace / "kedge.toml"
    file.write_text('model = "local/starter"\n[providers.mine]\nbase_url = "http://127.0.0.1:9/v1"\n')
    done = doctor("doctor", env=NO_KEYS)
    assert done.code == 0, done
    assert "ok    model local/starter: " in done.out
    assert "kedge.toml:3: providers.mine.base_url is ignored" in done.out
    assert "kedge config trust" in done.out
    file.write_text("modle = 1\n")
    done = doctor("doctor", env=NO_KEYS)
    assert done.code == 1
    assert "FAIL  The configuration is invalid: " in done.out
    assert "kedge.toml:1: modle: " in done.out


def test_it_sees_the_running_server(kedge: Kedge) -> None:
    done = kedge("doctor", env=STARTER)
    assert done.code == 0, done
    assert "ok    server " in done.out


def test_a_database_that_no_server_can_open_is_a_failure_and_an_old_one_is_not(doctor: Kedge) -> None:
    data = doctor.place.data_dir
    data.mkdir()
    make_old_store(data)
    done = doctor("doctor", env=STARTER)
    assert done.code == 0, done
    assert "kedge.db" in done.out
    for file in data.iterdir():
        file.unlink()
    (data / "kedge.db").write_bytes(b"this is no database" * 100)
    done = doctor("doctor", env=STARTER)
    assert done.code == 1
    assert "FAIL  " in done.out
    assert "kedge.db" in done.out


def test_a_server_that_is_named_and_not_there_is_a_failure_that_says_how_to_start_it(doctor: Kedge) -> None:
    done = doctor("doctor", "--host", "tcp://127.0.0.1:1", env=STARTER)
    assert done.code == 1
    assert "kedge serve --host tcp://127.0.0.1:1" in done.out


def test_wrong_usage_is_exit_code_2(doctor: Kedge) -> None:
    assert doctor("doctor", "--nonsense").code == 2
