"""`kedge config`: show and change the configuration. Needs no server."""

from __future__ import annotations

import os

from kedge.cli.common import EXIT_OK, EXIT_USAGE, find_directory, run_command
from kedge.cli.options import Options, UsageError, named
from kedge.cli.output import print_error, print_json, print_table
from kedge.protocol.text_safety import visible_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

HELP = """\
usage: kedge config show [KEY] | set KEY VALUE | remove KEY | schema | path | trust [DIR] | untrust [DIR]

  show      show every value and where it comes from; secrets are shortened
  set       set a key in your own file, or with -w in the workspace's kedge.toml
  remove    remove a key from it
  schema    print the JSON schema of the configuration, for editors
  path      list the files that are read; later ones override earlier ones
  trust     trust a project's kedge.toml: it may run commands, name servers and grant permissions
  untrust   stop trusting it

  -w, --workspace         change the workspace's kedge.toml instead of your own file
      --json              show, path: print JSON
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
    action, words = options.subcommand(ACTIONS)
    action(words, options)
    return EXIT_OK


def _show(words: list[str], options: Options) -> None:
    from kedge.config.keys import InvalidKey
    from kedge.config.load import Loader
    from kedge.config.show import describe_config

    key = _only_word(words, "kedge config show [KEY]", least=0)
    try:
        config = describe_config(Loader().load(_find_workspace(options), os.environ), key)
    except InvalidKey:
        raise UsageError(f"Invalid key {key!r}") from None
    if key is not None and not config.values and not config.ignored:
        raise UsageError(f"Unknown key {key!r}")
    if options.has("json"):
        import msgspec

        print_json(msgspec.to_builtins(config))
        return
    print_table([(each.key, _format_value(each.value), _format_origin(each)) for each in config.values])
    if config.ignored:
        print("\nignored:" if config.values else "ignored:")
    for each in config.ignored:
        print(visible_line(f"  {each.file}:{each.line}: {each.key} {each.why}"))


def _set(words: list[str], options: Options) -> None:
    from kedge.config.change import parse_value, set_in_file

    if len(words) != 2:
        raise UsageError("Use kedge config set KEY VALUE")
    file = _choose_file(options)
    set_in_file(file, words[0], parse_value(*words))
    print(f"Set in {file}.")
    if options.has("workspace"):
        _warn_if_ignored(words[0], file, options)


def _warn_if_ignored(key: str, file: Path, options: Options) -> None:
    """Warn about a key that has no effect in the workspace's file."""
    from kedge.config.errors import BadConfig
    from kedge.config.keys import format_key, parse_key
    from kedge.config.load import Loader

    try:
        loaded = Loader().load(_find_workspace(options), os.environ)
    except BadConfig:
        return  # something else is wrong, and was before this change
    for each in loaded.ignored:
        if each.file == str(file) and each.key == format_key(parse_key(key)):
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


ACTIONS: dict[str, Callable[[list[str], Options], None]] = {
    "show": _show,
    "set": _set,
    "remove": _remove,
    "schema": _schema,
    "path": _path,
    "trust": _trust,
    "untrust": _untrust,
}
