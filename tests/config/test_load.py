"""Layers become one configuration: later wins, tables merge, denials add up, and each value knows its origin."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kedge.config.environment import list_variables
from kedge.config.errors import BadConfig
from kedge.config.files import MAX_BYTES, ConfigPaths, workspace_files
from kedge.config.schema import Config
from kedge.config.schema_tree import iter_leaves
from tests.config.home import Home
from tests.server.process import ROOT


def problems(home: Home, **env: str) -> list[str]:
    with pytest.raises(BadConfig) as caught:
        home.load(**env)
    assert caught.value.code == "bad_config"
    assert "\n" not in caught.value.message
    root = str(home.repository.parent.parent)
    return [str(problem).replace(root, "") for problem in caught.value.problems]


def test_without_any_file_the_defaults_hold(home: Home) -> None:
    loaded = home.load()
    assert loaded.config == Config()
    assert (loaded.origins, loaded.ignored) == ({}, ())
    assert not any(file.exists for file in loaded.files)


def test_each_layer_wins_over_the_one_before(home: Home) -> None:
    layers = [home.system, home.user, home.outer, home.inner]
    for place, file in enumerate(layers):
        home.write(file, f'# one\nmodel = "a/{place}"\n')
        loaded = home.load()
        assert loaded.config.model == f"a/{place}"
        assert str(loaded.origins["model",]) == f"{file}:2"
    loaded = home.load(KEDGE_MODEL="a/env")
    assert loaded.config.model == "a/env"
    assert str(loaded.origins["model",]) == "KEDGE_MODEL"


def test_tables_are_merged_and_lists_replaced(home: Home) -> None:
    home.write(home.system, "[agent]\ntitles = false\nmax_steps = 5\ncontext_files = ['a', 'b']\n")
    home.write(home.user, "[agent]\nmax_steps = 7\ncontext_files = ['c']\n[providers.x.extra_body]\na.b = 1\n")
    home.write(home.inner, "agent.summarize_at = 0.5\n")
    config = home.load().config
    assert (config.agent.titles, config.agent.max_steps, config.agent.summarize_at) == (False, 7, 0.5)
    assert config.agent.context_files == ("c",)
    assert config.providers["x"].extra_body == {"a": {"b": 1}}


def test_no_layer_undoes_what_another_denies(home: Home) -> None:
    home.write(home.system, "permissions.deny = ['bash']\n")
    home.write(home.user, "permissions.deny = ['edit', 'bash']\n")
    home.write(home.inner, "permissions.deny = []\n")
    assert home.load().config.permissions.deny == ("bash", "edit")


def test_a_table_that_is_empty_is_there(home: Home) -> None:
    home.write(home.user, '[providers.local.models."llama.cpp"]\n')
    assert list(home.load().config.providers["local"].models) == ["llama.cpp"]


def test_a_value_takes_the_place_of_a_table_with_all_that_was_in_it(home: Home) -> None:
    home.write(home.system, "providers.x.extra_body.options = { a = 1, b = 2 }\n")
    home.write(home.user, "providers.x.extra_body.options = 3\n")
    loaded = home.load()
    assert loaded.config.providers["x"].extra_body == {"options": 3}
    assert [key for key in loaded.origins if "b" in key] == []


def test_files_count_from_the_repositorys_root_down_and_not_above_it(home: Home) -> None:
    home.write(home.repository.parent / "kedge.toml", 'model = "a/above"\n')
    assert home.load().config.model is None
    found = [file.relative_to(home.repository) for file in workspace_files(home.workspace)]
    assert list(map(str, found)) == ["kedge.toml", "packages/kedge.toml", "packages/one/kedge.toml"]


def test_without_a_repository_only_the_workspaces_own_file_counts(home: Home) -> None:
    (home.repository / ".git").rmdir()
    home.write(home.outer, 'model = "a/outer"\n')
    home.write(home.inner, "agent.titles = false\n")
    config = home.load().config
    assert (config.model, config.agent.titles) == (None, False)


def test_places_follow_the_xdg_specification() -> None:
    env = {"HOME": "/u", "XDG_CONFIG_DIRS": "/strong:relative:/weak", "XDG_CONFIG_HOME": "relative"}
    paths = ConfigPaths.from_env(env)
    assert [str(each) for each in paths.system] == [
        "/etc/kedge/config.toml",
        "/weak/kedge/config.toml",
        "/strong/kedge/config.toml",
    ]
    assert str(paths.user) == "/u/.config/kedge/config.toml"
    assert str(ConfigPaths.from_env({"HOME": "/u", "XDG_CONFIG_HOME": "/c"}).user) == "/c/kedge/config.toml"


# the environment


def test_every_key_with_one_value_and_a_fixed_name_has_a_variable() -> None:
    wanted = {path for path, leaf in iter_leaves() if "*" not in path and leaf.kind not in ("texts", "tables")}
    assert {path for path, _ in list_variables().values()} == wanted
    assert {"KEDGE_MODEL", "KEDGE_SMALL_MODEL", "KEDGE_AGENT__MAX_STEPS", "KEDGE_PERMISSIONS__MODE"} <= set(
        list_variables()
    )


def test_no_variable_is_one_that_already_means_something_else() -> None:
    files = [ROOT / "src/kedge/failpoints.py", ROOT / "src/kedge/cli/serve.py"]
    files += [
        file for part in ("client", "protocol", "server", "store") for file in (ROOT / "src/kedge" / part).rglob("*.py")
    ]
    used = {name for file in files for name in re.findall(r"\bKEDGE_[A-Z_]+", file.read_text())}
    assert {"KEDGE_HOST", "KEDGE_TOKEN", "KEDGE_DATA_DIR", "KEDGE_IDLE_TIMEOUT"} <= used
    assert not set(list_variables()) & used


def test_variables_are_read_by_the_type_of_their_key(home: Home) -> None:
    config = home.load(
        KEDGE_AGENT__MAX_STEPS="7", KEDGE_AGENT__MAX_COST="0.5", KEDGE_AGENT__TITLES="off", KEDGE_SMALL_MODEL="a/b"
    ).config
    assert (config.agent.max_steps, config.agent.max_cost, config.agent.titles) == (7, 0.5, False)
    assert config.small_model == "a/b"


def test_a_variable_that_is_empty_is_not_set(home: Home) -> None:
    home.write(home.user, "model = 'a/b'\n")
    assert home.load(KEDGE_MODEL=" ").config.model == "a/b"


def test_wrong_variables_are_named_with_what_was_expected(home: Home) -> None:
    wrong = problems(home, KEDGE_AGENT__MAX_STEP="7", KEDGE_AGENT__TITLES="perhaps", KEDGE_HOST="x")
    assert [each.partition(":")[0] for each in wrong] == ["KEDGE_AGENT__MAX_STEP", "KEDGE_AGENT__TITLES"]
    assert "did you mean KEDGE_AGENT__MAX_STEPS?" in wrong[0]
    assert "true or false" in wrong[1]


# expansion


def test_variables_in_texts_are_expanded(home: Home) -> None:
    home.write(
        home.user,
        """\
        model = "${P}/x-${V:-1}"
        small_model = "$$${EMPTY:-a}$ $HOME ${SET:-b}${EMPTY}"
        [providers.x]
        headers = { a = "${P}" }
        extra_body = { list = ["${P}", { in = "${P}" }], number = 1 }
        """,
    )
    config = home.load(P="p", EMPTY="", SET="set").config
    assert config.model == "p/x-1"
    assert config.small_model == "$a$ $HOME set"
    assert config.providers["x"].headers == {"a": "p"}
    assert config.providers["x"].extra_body == {"list": ["p", {"in": "p"}], "number": 1}


def test_what_was_expanded_is_not_expanded_again(home: Home) -> None:
    home.write(home.user, 'model = "${A}"\n')
    assert home.load(A="${HOME}").config.model == "${HOME}"


def test_a_variable_that_is_not_set_is_an_error_that_says_how_to_mend_it(home: Home) -> None:
    home.write(home.user, '\n[providers.x]\napi_key = "${MY_KEY}"\nextra_body.a = ["${OTHER}"]\nbase_url = "${1}"\n')
    file = "/home/.config/kedge/config.toml"
    api_key, extra_body, base_url = problems(home)
    assert api_key.startswith(f"{file}:3: providers.x.api_key: ")
    assert "MY_KEY" in api_key
    assert extra_body.startswith(f"{file}:4: providers.x.extra_body.a[0]: ")
    assert "OTHER" in extra_body
    assert base_url.startswith(f"{file}:5: providers.x.base_url: ")


def test_a_choice_is_checked_after_it_was_expanded(home: Home) -> None:
    home.write(home.user, 'permissions.mode = "${MODE:-plan}"\n')
    assert home.load().config.permissions.mode == "plan"
    (wrong,) = problems(home, MODE="yola")
    assert wrong.startswith("/home/.config/kedge/config.toml:1: permissions.mode: ")
    assert 'did you mean "yolo"?' in wrong


# errors


def test_all_problems_of_all_files_are_told_each_with_its_line(home: Home) -> None:
    home.write(
        home.user,
        """\
        modle = "a/b"
        max_steps = 3
        [agent]
        max_steps = "many"
        max_cots = 1
        titles = 1
        summarize_at = 1.5
        max_cost = 1979-05-27
        [providers."my.own"]
        base_ur = "x"
        wire = "caht"
        headers = ["a"]
        extra_body.when = 1979-05-27
        """,
    )
    home.write(home.inner, "agent = 3\npermissions.deny = 'all'\n")
    user, inner = "/home/.config/kedge/config.toml", "/src/repository/packages/one/kedge.toml"
    expected = [
        (f"{user}:1: modle: ", "did you mean model?"),
        (f"{user}:2: max_steps: ", "did you mean agent.max_steps?"),
        (f"{user}:4: agent.max_steps: ", "at least 1"),
        (f"{user}:5: agent.max_cots: ", "did you mean agent.max_cost?"),
        (f"{user}:6: agent.titles: ", "true or false"),
        (f"{user}:7: agent.summarize_at: ", "at most 1"),
        (f"{user}:8: agent.max_cost: ", "above 0"),
        (f'{user}:10: providers."my.own".base_ur: ', 'did you mean providers."my.own".base_url?'),
        (f'{user}:11: providers."my.own".wire: ', 'did you mean "chat"?'),
        (f'{user}:12: providers."my.own".headers: ', "a table"),
        (f'{user}:13: providers."my.own".extra_body.when: ', "JSON"),
        (f"{inner}:1: agent: ", "a table"),
        (f"{inner}:2: permissions.deny: ", "a list"),
    ]
    for problem, (where, hint) in zip(problems(home), expected, strict=True):
        assert problem.startswith(where)
        assert hint in problem


@pytest.mark.parametrize(
    ("content", "line", "why"),
    [
        (b"a = 1\nb = \n", 2, "is not valid TOML: Invalid value, in column 5"),
        (b"a = 1\na = 2\n", 2, "is not valid TOML: Cannot overwrite a value, in column 6"),
        (b'a = """\nnever closed', 2, "is not valid TOML: Unterminated string, at its end"),
        (b"a = 1\n\nb = '\xff'\n", 3, "is not UTF-8; save it as UTF-8"),
        (b"a = " + b"[" * 100_000, 0, "is nested too deeply"),
    ],
)
def test_what_is_no_toml_is_told_with_its_place(home: Home, content: bytes, line: int, why: str) -> None:
    home.write(home.user, "")
    home.user.write_bytes(content)
    place = f"/home/.config/kedge/config.toml:{line}" if line else "/home/.config/kedge/config.toml"
    assert problems(home) == [f"{place}: {why}"]


def test_what_is_no_file_is_told_and_never_waited_for(home: Home) -> None:
    home.inner.mkdir()
    assert problems(home) == ["/src/repository/packages/one/kedge.toml: cannot be read: it is not a file"]
    home.inner.rmdir()
    os.mkfifo(home.inner)
    assert problems(home) == ["/src/repository/packages/one/kedge.toml: cannot be read: it is not a file"]
    home.inner.unlink()
    home.inner.write_bytes(b"#" * (MAX_BYTES + 1))
    assert problems(home) == ["/src/repository/packages/one/kedge.toml: cannot be read: it is over 256 KiB"]
    home.inner.unlink()
    home.inner.symlink_to("/dev/zero")
    assert problems(home) == ["/src/repository/packages/one/kedge.toml: cannot be read: it is not a file"]


DEEP = {
    "a dotted key": "a." * 50_000 + "a = 1",
    "a header": "[" + "a." * 50_000 + "a]",
    "quote parts": '"a.b" . ' * 20_000 + "a = 1",
    "in an inline table": "x = {" + "'a'." * 30_000 + "a = 1}",
    "behind a text": 'x = """\n\\""" #"""\n' + "a." * 50_000 + "a = 1",
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", DEEP)
def test_a_key_of_thousands_of_parts_is_refused_before_it_is_parsed(home: Home, name: str) -> None:
    home.inner.write_text(DEEP[name])
    line = 1 + DEEP[name].count("\n")
    place = f"/src/repository/packages/one/kedge.toml:{line}"
    assert problems(home) == [f"{place}: has a key of more than 32 parts"]


@pytest.mark.timeout(20)
def test_a_file_of_unknown_keys_and_one_with_an_endless_number_are_refused_soon(home: Home) -> None:
    home.inner.write_text("".join(f"a{i} = 1\n" for i in range(20_000)))
    assert len(problems(home)) == 100
    home.inner.write_text("a = " + "9" * 100_000)
    assert problems(home) == ["/src/repository/packages/one/kedge.toml: has a number that is too long"]


def test_a_text_that_may_be_a_key_is_not_repeated_in_an_error(home: Home) -> None:
    home.write(home.user, "agent.max_steps = 'sk-0123456789abcdef0123456789'\n")
    assert "sk-" not in problems(home)[0]


def test_a_mark_at_the_beginning_and_other_line_ends_do_no_harm(home: Home) -> None:
    home.write(home.user, "")
    home.user.write_bytes(b"\xef\xbb\xbfmodel = 'a/b'\r\n\r\nagent.max_steps = 3\r\n")
    loaded = home.load()
    assert loaded.config.model == "a/b"
    assert loaded.origins["agent", "max_steps"].line == 3


# the cache


def test_a_file_is_parsed_again_only_when_it_changed(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    from kedge.config import files

    parsed: list[Path] = []
    real = files.parse_document

    def counted(path: Path, content: bytes) -> files.Document:
        parsed.append(path)
        return real(path, content)

    monkeypatch.setattr(files, "parse_document", counted)
    monkeypatch.setattr(files, "FRESH_NS", -(10**18))  # as if all were written long ago
    home.write(home.user, 'model = "a/1"\n')
    for _ in range(3):
        assert home.load().config.model == "a/1"
    assert parsed == [home.user]
    home.write(home.user, 'model = "a/2"\n')
    assert home.load().config.model == "a/2"


def test_a_change_that_leaves_no_trace_in_the_times_is_seen(home: Home) -> None:
    for number in range(50):  # each of the same size, within the same tick of the clock
        home.write(home.user, f'model = "a/{number:03}"\n')
        assert home.load().config.model == f"a/{number:03}"


def test_a_broken_file_raises_until_it_is_mended(home: Home) -> None:
    home.write(home.user, "model = \n")
    assert len(problems(home)) == len(problems(home)) == 1
    home.write(home.user, "model = 'a/b'\n")
    assert home.load().config.model == "a/b"
    home.user.unlink()
    assert home.load().config.model is None


def test_a_permission_rule_that_cannot_be_read_is_a_problem_with_its_place(home: Home) -> None:
    home.write(
        home.inner,
        """
        [permissions]
        mode = "plan"
        allow = ["bash(x"]
        deny = ["bash(git *)", "fetch(example.com)"]
        """,
    )
    with pytest.raises(BadConfig) as caught:
        home.load()
    places = [(each.where, each.line, each.key) for each in caught.value.problems]
    assert places == [(str(home.inner), 4, "permissions.allow"), (str(home.inner), 5, "permissions.deny")]
    told = [each.message for each in caught.value.problems]
    assert '"bash(x"' in told[0]
    assert "`fetch(domain:example.com)`" in told[1]


FIRST_USE = """
import threading
from pathlib import Path

import msgspec._utils

from kedge.config.load import Loader
from kedge.config.schema import Config

def learn(*_):
    raise AssertionError("a struct is learned at its first use")

knows, msgspec._utils._forward_ref = msgspec._utils._forward_ref, learn
msgspec.convert({"agent": {"titles": False}}, Config)
msgspec._utils._forward_ref = knows
ready = threading.Barrier(8)

def load():
    ready.wait()
    assert not Loader().load(Path("/"), {"KEDGE_AGENT__TITLES": "false"}).config.agent.titles
    whole.append(1)

whole = []
threads = [threading.Thread(target=load) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(whole))
"""


def test_threads_that_load_first_at_the_same_time_find_the_schema_learned() -> None:
    """msgspec crashes the process when one thread uses a struct that another is just learning."""
    done = subprocess.run([sys.executable, "-c", FIRST_USE], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "8"), done.stderr[-2000:]
