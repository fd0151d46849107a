"""The environment variables of commands.

`user_environment` is for a command that the user typed, `command_environment` for one of the agent's,
`contained_environment` for one that runs in the sandbox of mode `auto`, and `unapproved_environment` for one that the
agent runs without approval. Each removes more than the one before it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from kedge.files.environment import drop_invalid_variables, harden_git_env, safe_path
from kedge.tools.sandbox.policy import OUTSIDE_VARIABLES

# Keeps programs from waiting for a key, a text or a password, and from printing colors.
_PAGERS = ("PAGER", "MANPAGER", "GIT_PAGER", "GH_PAGER", "BAT_PAGER", "DELTA_PAGER", "PSQL_PAGER", "SYSTEMD_PAGER")
_NON_INTERACTIVE = {
    **dict.fromkeys(_PAGERS, "cat"),
    "AWS_PAGER": "",
    **dict.fromkeys(("EDITOR", "VISUAL", "GIT_EDITOR", "GIT_SEQUENCE_EDITOR"), "true"),
    # An editor that is started by name executes its `-c` commands and quits.
    "VIMINIT": "set noswapfile nomore shortmess=aoOtTWAIF | autocmd VimEnter * cquit",
    "GIT_TERMINAL_PROMPT": "0",
    **dict.fromkeys(("GIT_ASKPASS", "SSH_ASKPASS", "SUDO_ASKPASS"), "false"),
    "SSH_ASKPASS_REQUIRE": "never",
    "GCM_INTERACTIVE": "never",
    "GH_PROMPT_DISABLED": "1",
    "TERM": "dumb",
    "NO_COLOR": "1",
    "CLICOLOR": "0",
}
_UNLESS_SET = {
    "DEBIAN_FRONTEND": "noninteractive",
    "PYTHONUNBUFFERED": "1",  # output is seen at once
}
_NEVER = frozenset({"KEDGE_TOKEN", "KEDGE_FAILPOINT", "FORCE_COLOR", "CLICOLOR_FORCE"})

# Variables that change how a shell reads a command line: it would not mean what was checked.
_SHELL_NAMES = frozenset(
    {
        *("BASHOPTS", "SHELLOPTS", "BASH_COMPAT", "POSIXLY_CORRECT", "BASH_XTRACEFD", "BASH_LOADABLES_PATH"),
        *("BASH_ARGV0", "CDPATH", "OLDPWD", "GLOBIGNORE", "GLOBSORT", "EXECIGNORE", "FIGNORE", "IFS", "PS4"),
        *("PROMPT_COMMAND", "TEXTDOMAIN", "TEXTDOMAINDIR"),
    }
)
_SHELL_PREFIXES = ("BASH_FUNC_",)

# Variables that make a program load code, run another program, or read other files or options.
_PROGRAM_NAMES = frozenset(
    {
        *("BASH_ENV", "ENV", "INPUTRC", "LANGUAGE", "GCONV_PATH", "LOCPATH", "NLSPATH", "GLIBC_TUNABLES", "TZDIR"),
        *("TERMINFO", "TERMINFO_DIRS", "TERMCAP", "TERMPATH", "HOSTALIASES", "LESS", "LESSOPEN", "LESSCLOSE"),
        *("LESSKEY", "LV", "MAGIC", "AWKPATH", "AWKLIBPATH", "GAWK_EXTENSION_PATH", "RIPGREP_CONFIG_PATH", "EXINIT"),
        *("MAKEFLAGS", "MFLAGS", "GNUMAKEFLAGS", "MAKEFILES", "GZIP", "BZIP", "BZIP2", "XZ_DEFAULTS", "XZ_OPT"),
        *("ZIPOPT", "UNZIP", "ZIPINFO", "UNZIPOPT", "MANOPT", "MANROFFOPT", "MANLESS", "PHPRC", "RUSTC"),
        *("RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER", "RUSTFLAGS", "RUSTDOC", "GOFLAGS", "GOENV", "TCLLIBPATH"),
        "OPENSSL_CONF",
        *("OPENSSL_MODULES", "OPENSSL_ENGINES", "SSLKEYLOGFILE", "CLASSPATH", "GTK_MODULES", "GIO_EXTRA_MODULES"),
    }
)
_PROGRAM_PREFIXES = (
    *("LD_", "DYLD_", "MALLOC_", "PYTHON", "NODE_", "RUBY", "PERL", "GEM_", "BUNDLE_", "LUA_", "GIT_", "GROFF_"),
    *("npm_config_", "NPM_CONFIG_", "PIP_", "UV_"),
)
_PROGRAM_SUFFIXES = ("_OPTS", "_OPTIONS", "_OPTS_FILE", "_PRELOAD")
_GIT_KEPT = frozenset(
    {
        *("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"),
        *("GIT_CEILING_DIRECTORIES", "GIT_CONFIG_NOSYSTEM"),
    }
)

# Variables that lead to programs outside of a sandbox.
_SOCKET_NAMES = OUTSIDE_VARIABLES | {
    *("DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "DOCKER_HOST", "CONTAINER_HOST", "TMUX", "STY"),
}

_CREDENTIAL_NAME = re.compile(
    r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH|COOKIE|SESSION|PRIVATE|BEARER|JWT|SIGNING|WEBHOOK|CONNECTION_?STRING"
    r"|CONNSTR|_DSN$|^DSN$|_PAT$|_PWD?$|_CREDS?$|^CREDS?$|DATABASE_UR[IL]|^NETRC$|^KUBECONFIG$"
    r"|^(AWS|AZURE|ARM|GOOGLE|GCP|CLOUDSDK|VAULT|PG|MYSQL|REDIS|MONGO|KEDGE)",
    re.IGNORECASE,
)
_CREDENTIAL_VALUE = re.compile(
    r"://[^/\s@]*:[^/\s@]+@"  # a URL with a password
    r"|-----BEGIN |\bBearer |\bBasic [A-Za-z0-9+/=]{8}"
    r"|\bsk[-_][A-Za-z0-9]|\b[rp]k_(live|test)_|\bgh[opsur]_\w|\bgithub_pat_|\bglpat-|\bxox[a-z]-|\bhf_\w{8}|\bnpm_\w{8}"
    r"|\bpypi-\w{8}|\bdop_v1_|\bshp(at|ca|pa|ss)_|\bSG\.\w|\bya29\.|\bAIza\w{8}|\b(AKIA|ASIA)[0-9A-Z]{12}"
    r"|\beyJ[\w-]{8,}\.[\w-]+"  # a JSON web token
)


def user_environment(caller: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a command that the user typed."""
    kept = {name: value for name, value in drop_invalid_variables(caller).items() if name not in _NEVER}
    return {**_UNLESS_SET, **kept, **_NON_INTERACTIVE}


def command_environment(caller: Mapping[str, str], directory: Path) -> dict[str, str]:
    """Return the variables of an agent's command in `directory`, without those that change how a shell reads it."""
    kept = {name: value for name, value in user_environment(caller).items() if not _changes_the_shell(name)}
    return {**kept, "PWD": str(directory)}


def contained_environment(caller: Mapping[str, str], directory: Path) -> dict[str, str]:
    """Return the variables of a command that mode `auto` allows, without credentials and sockets of other programs."""
    kept = {
        name: value
        for name, value in caller.items()
        if name in _GIT_KEPT or not (name in _SOCKET_NAMES or _is_credential(name, value))
    }
    return command_environment(kept, directory)


def unapproved_environment(caller: Mapping[str, str], directory: Path, scratch: Path) -> dict[str, str]:
    """Return the variables of a command that runs without approval.

    Leaves out credentials, variables that make a program load code or start another one, sockets of other programs, and
    entries of PATH in the workspace or the scratch directory. Applying it twice changes nothing.
    """
    clean = {
        name: value
        for name, value in caller.items()
        if name in _GIT_KEPT or not (_changes_a_program(name, value) or _is_credential(name, value))
    }
    path = safe_path(caller.get("PATH", os.defpath), (directory, scratch))
    authors = {name: value for name, value in drop_invalid_variables(clean).items() if name in _GIT_KEPT}
    return {**harden_git_env(command_environment(clean, directory)), **authors, "PATH": path}


def _changes_the_shell(name: str) -> bool:
    return name in _SHELL_NAMES or name.startswith(_SHELL_PREFIXES)


def _changes_a_program(name: str, value: str) -> bool:
    if name in _PROGRAM_NAMES or name in _SOCKET_NAMES:
        return True
    if name.startswith(_PROGRAM_PREFIXES) or name.endswith(_PROGRAM_SUFFIXES):
        return True
    if name == "TZ":
        return value.startswith(("/", ":")) or ".." in value
    return name.startswith(("LC_", "LANG")) and "/" in value


def _is_credential(name: str, value: str) -> bool:
    return name != "PWD" and bool(_CREDENTIAL_NAME.search(name) or _CREDENTIAL_VALUE.search(value))
