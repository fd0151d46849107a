"""`kedge config`: what is configured and where it comes from; set, removed, described. It needs no server."""

from __future__ import annotations

import os

from kedge.cli.common import EXIT_OK, EXIT_USAGE
from kedge.cli.options import Options, UsageError, named
from kedge.cli.output import complain, print_json, print_table
from kedge.protocol.text_safety import visible_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

    from kedge.protocol.api import ConfigAnswer

HELP = """\
usage: kedge config show [KEY] | set KEY VALUE | remove KEY | schema | path | trust [DIR] | untrust [DIR]

  show      every value with where it comes from; secrets are cut short
  set       write a key into your own file, or with -w into kedge.toml of the workspace
  remove    take a key out of it again
  schema    the JSON schema of the configuration, for editors
  path      which files are looked for, the weakest first
  trust     let kedge.toml of a directory run commands, name servers and grant rights
  untrust   no more

  -w, --workspace         change kedge.toml of the workspace instead of your own file
      --json              show and path: as JSON
  -c, --cwd DIR           the workspace's directory (the current one)
  -h, --help              show this
"""
FLAGS = named("-w --workspace", "--json", "-h --help")
VALUES = named("-c --cwd")


def run(argv: list[str]) -> int:
    from kedge.config.errors import BadConfig
    from kedge.protocol.errors import KedgeError

    try:
        options = Options(argv, flags=FLAGS, values=VALUES)
        if options.has("help"):
            print(HELP, end="")
            return EXIT_OK
        verb, *words = options.words or [""]
        action = ACTIONS.get(verb)
        if action is None:
            raise UsageError(f"say what to do: {', '.join(ACTIONS)}")
        action(words, options)
    except UsageError as error:
        return complain(f"{error}; 'kedge config --help' explains", EXIT_USAGE)
    except BadConfig as error:
        for problem in error.problems:
            complain(str(problem), EXIT_USAGE)
        return EXIT_USAGE
    except KedgeError as error:
        return complain(error.message, EXIT_USAGE)
    return EXIT_OK


def _show(words: list[str], options: Options) -> None:
    from kedge.config.keys import InvalidKey
    from kedge.config.load import Loader
    from kedge.config.show import describe_config

    key = _only(words, "kedge config show [KEY]", least=0)
    try:
        found = describe_config(Loader().load(_directory(options), os.environ), key)
    except InvalidKey:
        raise UsageError(f"{key!r} is no key") from None
    if key is not None and not found.values and not found.ignored:
        raise UsageError(f"nothing is set at {key!r}, and there is no such key")
    if options.has("json"):
        print_json(_plain(found))
    else:
        print_table([(each.key, _text(each.value), _origin(each)) for each in found.values])
        _print_ignored(found)


def _print_ignored(found: ConfigAnswer) -> None:
    if found.ignored:
        print("\nignored:" if found.values else "ignored:")
    for each in found.ignored:
        print(visible_line(f"  {each.file}:{each.line}: {each.key} {each.why}"))


def _set(words: list[str], options: Options) -> None:
    from kedge.config.change import parse_value, set_in_file

    if len(words) != 2:
        raise UsageError("say what to set: kedge config set KEY VALUE")
    file = _file(options)
    set_in_file(file, words[0], parse_value(*words))
    print(f"set in {file}")
    if options.has("workspace"):
        _warn_if_ignored(words[0], file, options)


def _warn_if_ignored(key: str, file: Path, options: Options) -> None:
    """Who sets what does not count learns it here, and not from a run that does something else."""
    from kedge.config.errors import BadConfig
    from kedge.config.keys import format_key, parse_key
    from kedge.config.load import Loader

    try:
        loaded = Loader().load(_directory(options), os.environ)
    except BadConfig:
        return  # something else is wrong, and was before
    for each in loaded.ignored:
        if each.file == str(file) and each.key == format_key(parse_key(key)):
            complain(f"it is ignored there: {each.key} {each.why}", EXIT_OK)


def _remove(words: list[str], options: Options) -> None:
    from kedge.config.change import remove_from_file

    key, file = _only(words, "kedge config remove KEY"), _file(options)
    remove_from_file(file, key or "")
    print(f"removed from {file}")


def _schema(words: list[str], options: Options) -> None:
    from kedge.config.schema import json_schema

    del options
    _only(words, "kedge config schema", least=0, most=0)
    print(json_schema(), end="")


def _path(words: list[str], options: Options) -> None:
    """Also when a file cannot be used: this is how it is found."""
    from kedge.config.load import Loader

    _only(words, "kedge config path", least=0, most=0)
    paths = [str(path) for path in Loader().candidates(_directory(options))]
    if options.has("json"):
        print_json([{"path": path, "exists": os.path.exists(path)} for path in paths])
    else:
        print_table([("found" if os.path.exists(path) else "-", path) for path in paths])


def _trust(words: list[str], options: Options) -> None:
    from kedge.config.change import trust
    from kedge.config.paths import ConfigPaths

    directory = _named_directory(words, options)
    is_new = trust(ConfigPaths.from_env().user, directory)
    print(f"{directory} is trusted" if is_new else f"{directory} was trusted already")


def _untrust(words: list[str], options: Options) -> None:
    from pathlib import Path

    from kedge.config.change import untrust
    from kedge.config.paths import ConfigPaths

    directory = _named_directory(words, options)
    if not untrust(ConfigPaths.from_env().user, directory, Path.home()):
        raise UsageError(f"{directory} is not in your list; 'kedge config show trusted' prints it")
    print(f"{directory} is not trusted any more")


def _named_directory(words: list[str], options: Options) -> Path:
    from pathlib import Path

    given = _only(words, "kedge config trust [DIR]", least=0)
    if given is None:
        return _directory(options)
    directory = Path(os.path.realpath(given))
    if not directory.is_dir():
        raise UsageError(f"there is no directory {given!r}")
    return directory


def _file(options: Options) -> Path:
    from kedge.config.change import file_for_scope
    from kedge.config.paths import ConfigPaths

    return file_for_scope(
        "workspace" if options.has("workspace") else "global", ConfigPaths.from_env(), _directory(options)
    )


def _directory(options: Options) -> Path:
    from pathlib import Path

    from kedge.cli.common import directory_of

    return Path(os.path.realpath(directory_of(options.get("cwd"))))


def _only(words: list[str], usage: str, *, least: int = 1, most: int = 1) -> str | None:
    if not least <= len(words) <= most:
        raise UsageError(f"write: {usage}")
    return words[0] if words else None


def _plain(found: ConfigAnswer) -> Any:
    import msgspec

    return msgspec.to_builtins(found)


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    import json

    return json.dumps(value, ensure_ascii=False)


def _origin(value: Any) -> str:
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
WORDS = (*ACTIONS, "--workspace", "--json", "--cwd", "--help")  # for the shell's completion
