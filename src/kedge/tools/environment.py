"""The variables of a command: the caller's, without secrets of Kedge, and with nothing that waits for a person."""

from __future__ import annotations

from collections.abc import Mapping

from kedge.files.environment import possible

# Programs that would wait for a key, a text or a password get no chance; colours and redrawing are noise to a model.
_NOBODY_IS_THERE = {
    "PAGER": "cat",
    "MANPAGER": "cat",
    "GIT_PAGER": "cat",
    "GH_PAGER": "cat",
    "BAT_PAGER": "cat",
    "DELTA_PAGER": "cat",
    "PSQL_PAGER": "cat",
    "SYSTEMD_PAGER": "cat",
    "AWS_PAGER": "",
    "EDITOR": "true",
    "VISUAL": "true",
    "GIT_EDITOR": "true",
    "GIT_SEQUENCE_EDITOR": "true",
    # An editor that is started by its name has nobody who could leave it: it carries out its `-c` commands, and ends.
    "VIMINIT": "set noswapfile nomore shortmess=aoOtTWAIF | autocmd VimEnter * cquit",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "false",
    "SSH_ASKPASS": "false",
    "SSH_ASKPASS_REQUIRE": "never",
    "SUDO_ASKPASS": "false",
    "GCM_INTERACTIVE": "never",
    "GH_PROMPT_DISABLED": "1",
    "TERM": "dumb",
    "NO_COLOR": "1",
    "CLICOLOR": "0",
}
_UNLESS_SET = {
    "DEBIAN_FRONTEND": "noninteractive",
    "PYTHONUNBUFFERED": "1",  # what a program says is seen when it says it
}
_NEVER = frozenset({"KEDGE_TOKEN", "KEDGE_FAILPOINT", "FORCE_COLOR", "CLICOLOR_FORCE"})


def environment(caller: Mapping[str, str]) -> dict[str, str]:
    """What no process can be given is left out, like a value with a NUL in it."""
    kept = {name: value for name, value in possible(caller).items() if name not in _NEVER}
    return {**_UNLESS_SET, **kept, **_NOBODY_IS_THERE}
