"""`kedge config`: show and change the configuration. Needs no server."""

from __future__ import annotations

import os

from kedge.cli.common import EXIT_FAILED, EXIT_OK, EXIT_USAGE, find_directory, run_command
from kedge.cli.options import Options, UsageError, named
from kedge.cli.output import print_error, print_json, print_table
from kedge.protocol.text_safety import visible_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

    from kedge.protocol.api import ConfigAnswer

HELP = """\
usage: kedge config show [KEY] | get KEY | set KEY VALUE | remove KEY | edit | schema | path
       kedge config trust [DIR] | untrust [DIR]

  show      show every value and where it comes from (the default); secrets are shortened
  get       print one value alone; the exit code is 1 if the key has none
  set       set a key in your own file, or with -w in the workspace's kedge.toml
  remove    remove a key from it
  edit      open your own file, or with -w the workspace's, in $VISUAL or $EDITOR, and check it afterwards
  schema    print the JSON schema of the configuration, for editors
  path      list the files that are read; later ones override earlier ones
  trust     trust a project's kedge.toml: it may run commands, name servers and grant permissions
  untrust   stop trusting it

  -w, --workspace         change the workspace's kedge.toml instead of your own file
      --json              show, get, path: print JSON
  -c, --cwd DIR           workspace directory (default: the current directory)
  -h, --help              show this help
"""
FLAGS = named("-w --workspace", "--json")
VALUES = named("-c --cwd")
CONNECTS = False


def run(argv: list[str]) -> int:
    from kedge.config.errors import BadConfig
    from kedge.protocol.errors import KedgeError

    try:
        return run_command(argv, help_text=HELP, flags=FLAGS, values=VALUES, action=_dispatch, connects=CONNECTS)
    except BadConfig as error:
        for problem in error.problems:
            print_error(str(problem), EXIT_USAGE)
        return EXIT_USAGE
    except KedgeError as error:
        return print_error(error.message, EXIT_USAGE)


def _dispatch(options: Options) -> int:
    action, words = options.subcommand(ACTIONS, otherwise="show")
    return action(words, options) or EXIT_OK


def _show(words: list[str], options: Options) -> None:
    config = _describe(_only_word(words, "kedge config show [KEY]", least=0), options)
    if options.has("json"):
        import msgspec

        print_json(msgspec.to_builtins(config))
        return
    print_table([(each.key, _format_value(each.value), _format_origin(each)) for each in config.values])
    if config.ignored:
        print("\nIgnored:" if config.values else "Ignored:")
    for each in config.ignored:
        print(visible_line(f"  {each.file}:{each.line}: {each.key} {each.why}"))


def _describe(key: str | None, options: Options) -> ConfigAnswer:
    """Return the values of a key and of those below it, or of all. Raises `UsageError` if there is no such key."""
    from kedge.config.keys import InvalidKey
    from kedge.config.load import Loader
    from kedge.config.show import describe_config

    try:
        config = describe_config(Loader().load(_find_workspace(options), os.environ), key)
    except InvalidKey:
        raise UsageError(f"Invalid key {key!r}") from None
    if key is not None and not config.values and not config.ignored:
        raise UsageError(f"Unknown key {key!r} ('kedge config show' lists all)")
    return config


def _get(words: list[str], options: Options) -> int:
    from kedge.config.keys import format_key, parse_key

    key = _only_word(words, "kedge config get KEY") or ""
    values = _describe(key, options).values
    name = format_key(parse_key(key))
    exact = next((each for each in values if each.key == name), None)
    if exact is None:
        for each in values:  # a table
            print(visible_line(f"{each.key} = {_format_value(each.value)}"))
        return EXIT_OK if values else EXIT_FAILED
    if options.has("json"):
        print_json(exact.value)
    elif exact.value is not None:
        print(_format_value(exact.value))
    return EXIT_OK if exact.value is not None else EXIT_FAILED


def _edit(words: list[str], options: Options) -> int:
    import shlex
    import subprocess

    from kedge.config.load import Loader

    _only_word(words, "kedge config edit", least=0, most=0)
    file = _choose_file(options)
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        code = subprocess.run([*shlex.split(editor), str(file)], check=False).returncode
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"Could not open {file} in {editor!r} ({why}). Set EDITOR") from None
    if code:
        return print_error(f"The editor {editor!r} ended with exit code {code}", EXIT_FAILED)
    Loader().load(_find_workspace(options), os.environ)
    if options.has("workspace"):
        _warn_if_ignored(None, file, options)
    return EXIT_OK


def _set(words: list[str], options: Options) -> None:
    from kedge.config.change import parse_value, set_in_file

    if len(words) != 2:
        raise UsageError("Use kedge config set KEY VALUE")
    file = _choose_file(options)
    set_in_file(file, words[0], parse_value(*words))
    print(f"Set in {file}.")
    if options.has("workspace"):
        _warn_if_ignored(words[0], file, options)


def _warn_if_ignored(key: str | None, file: Path, options: Options) -> None:
    """Warn about a key, or all keys, that have no effect in the workspace's file."""
    from kedge.config.errors import BadConfig
    from kedge.config.keys import format_key, parse_key
    from kedge.config.load import Loader

    try:
        loaded = Loader().load(_find_workspace(options), os.environ)
    except BadConfig:
        return  # something else is wrong, and was before this change
    for each in loaded.ignored:
        if each.file == str(file) and (key is None or each.key == format_key(parse_key(key))):
            print_error(f"The key is ignored there: {each.key} {each.why}", EXIT_OK)


def _remove(words: list[str], options: Options) -> None:
    from kedge.config.change import remove_from_file

    key, file = _only_word(words, "kedge config remove KEY"), _choose_file(options)
    is_removed = remove_from_file(file, key or "")
    print(f"Removed from {file}." if is_removed else f"Not set in {file}: nothing was removed.")


def _schema(words: list[str], options: Options) -> None:
    from kedge.config.schema import json_schema

    del options
    _only_word(words, "kedge config schema", least=0, most=0)
    print(json_schema(), end="")


def _path(words: list[str], options: Options) -> None:
    """Works also when a file is invalid, so that it can be found."""
    from kedge.config.load import Loader

    _only_word(words, "kedge config path", least=0, most=0)
    paths = [str(path) for path in Loader().candidates(_find_workspace(options))]
    if options.has("json"):
        print_json([{"path": path, "exists": os.path.exists(path)} for path in paths])
    else:
        print_table([("found" if os.path.exists(path) else "-", path) for path in paths])


def _trust(words: list[str], options: Options) -> None:
    from kedge.config.change import trust
    from kedge.config.files import ConfigPaths

    directory = _choose_directory(words, options)
    is_new = trust(ConfigPaths.from_env().user, directory)
    print(f"{directory} is now trusted." if is_new else f"{directory} was already trusted.")


def _untrust(words: list[str], options: Options) -> None:
    from pathlib import Path

    from kedge.config.change import untrust
    from kedge.config.files import ConfigPaths

    directory = _choose_directory(words, options)
    if not untrust(ConfigPaths.from_env().user, directory, Path.home()):
        raise UsageError(f"{directory} is not trusted ('kedge config show trusted' lists those that are)")
    print(f"{directory} is no longer trusted.")


def _choose_directory(words: list[str], options: Options) -> Path:
    from pathlib import Path

    given = _only_word(words, "kedge config trust [DIR]", least=0)
    if given is None:
        return _find_workspace(options)
    directory = Path(os.path.realpath(given))
    if not directory.is_dir():
        raise UsageError(f"No such directory: {given!r}")
    return directory


def _choose_file(options: Options) -> Path:
    from kedge.config.change import file_for_scope
    from kedge.config.files import ConfigPaths

    scope = "workspace" if options.has("workspace") else "global"
    return file_for_scope(scope, ConfigPaths.from_env(), _find_workspace(options))


def _find_workspace(options: Options) -> Path:
    from pathlib import Path

    return Path(os.path.realpath(find_directory(options.get("cwd"))))


def _only_word(words: list[str], usage: str, *, least: int = 1, most: int = 1) -> str | None:
    """Return the only word, or None if there is none. Raises `UsageError` for too few or too many."""
    if not least <= len(words) <= most:
        raise UsageError(f"Use {usage}")
    return words[0] if words else None


def _format_value(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    import json

    return json.dumps(value, ensure_ascii=False)


def _format_origin(value: Any) -> str:
    return f"{value.name}:{value.line}" if value.line else value.name or value.layer


ACTIONS: dict[str, Callable[[list[str], Options], int | None]] = {
    "show": _show,
    "get": _get,
    "set": _set,
    "remove": _remove,
    "edit": _edit,
    "schema": _schema,
    "path": _path,
    "trust": _trust,
    "untrust": _untrust,
}
