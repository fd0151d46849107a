"""Hostile command shapes: every way that is known to make a shell run something, put into each other at random.

`{0}` is where a payload goes. Payloads try to make a file, to read a secret, to start a program of the repository.
"""

from __future__ import annotations

from hypothesis import strategies as st

PAYLOADS = (
    "touch pwned",
    "touch ../pwned",
    "echo x > pwned",
    "cp a.txt pwned",
    "sh -c 'touch pwned'",
    "./evil",
    "evil",
    "python3 -c \"open('pwned', 'w')\"",
    "sed -i s/text/pwned/ a.txt",
    "find . -maxdepth 0 -exec touch pwned ;",
    "git config --local core.pager pwned",
    "sort -o pwned a.txt",
    "truncate -s 0 a.txt",
    "ln -s / pwned",
    "chmod 0777 a.txt",
)
# Variables that the shell evaluates, or that decide how a line or a program works.
VARIABLES = (
    *("RANDOM", "SRANDOM", "SECONDS", "LINENO", "EPOCHSECONDS", "BASHPID", "OPTIND", "HISTCMD", "DIRSTACK", "FUNCNAME"),
    *("PATH", "BASH_ENV", "ENV", "CDPATH", "IFS", "PS4", "PROMPT_COMMAND", "GLOBIGNORE", "LC_ALL", "LANGUAGE", "TZ"),
    *("LD_PRELOAD", "GIT_PAGER", "GIT_EXTERNAL_DIFF", "GIT_DIR", "PAGER", "LESSOPEN", "PYTHONSTARTUP", "HOME", "x"),
)
EVALUATED = ("a[$({0})]", "$({0})", "`{0}`", "x[$({0} >&2)]", "({0})", "{0}")
FRAMES = (
    "{0}",
    "ls; {0}",
    "ls && {0}",
    "ls | {0}",
    "ls & {0}",
    "( {0} )",
    "{{ {0}; }}",
    "if true; then {0}; fi",
    "for i in 1; do {0}; done",
    "while {0}; do break; done",
    "case a in a) {0};; esac",
    "[ a = b || {0} ]",
    "[ a > $({0}) ]",
    "[[ a == $({0}) ]]",
    "[ -n $({0}) ]",
    "f() {{ {0}; }}; f",
    "function f {{ {0}; }}; f",
    "touch() {{ :; }} & {0}",
    "touch() {{ :; }}; unset touch; {0}",
    "echo $({0})",
    "echo `{0}`",
    'echo "$({0})"',
    "cat <({0})",
    "echo ${{y:-$({0})}}",
    "echo $(( $({0}) ))",
    "cat <<END\n$({0})\nEND",
    "cat <<< $({0})",
    "x=$({0})",
    "a=($({0}))",
    "ls > /dev/null; {0}",
    "ls # comment\n{0}",
    "ls \\\n; {0}",
    "time {0}",
    "! {0}",
    "trap '{0}' EXIT",
    "exec {0}",
    "coproc {0}",
    "select i in 1; do {0}; done < a.txt",
)
SHELLS = (
    "bash -c '{0}'",
    "sh -c '{0}'",
    "dash -c '{0}'",
    "eval '{0}'",
    'bash -c "{0}"',
    "env bash -c '{0}'",
    "CI='{0}' bash -c 'eval $CI'",
    "echo '{0}' | sh",
    "bash <<< '{0}'",
    "sh <<'END'\n{0}\nEND",
    "watch -n 9 -g '{0}'",
    "xargs -I{{}} sh -c '{0}' < a.txt",
)
WRAPPERS = (
    "env {0}",
    "env -u - {0}",
    "env -S '{0}'",
    "timeout 5 {0}",
    "nice {0}",
    "nohup {0}",
    "stdbuf -oL {0}",
    "command {0}",
    "builtin {0}",
    "exec -a x {0}",
    "echo a | xargs {0}",
    "echo a | xargs --eof {0}",
    "echo a | xargs --max-lines {0}",
    "echo a | xargs --replace {0}",
    "find . -maxdepth 0 -exec {0} \\;",
    "setsid {0}",
    "busybox {0}",
    "LC_ALL=C {0}",
    "2>/dev/null {0}",
    "''{0}",
    "\\{0}",
)


def assignments(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Values that are evaluated, given to special variables in every way a shell has."""
    ways = (
        "{1}='{0}'",
        "{1}='{0}' ls",
        "export {1}='{0}'; ls",
        "declare -i {1}='{0}'",
        "declare {1}='{0}'; echo $(({1}))",
        "for {1} in '{0}'; do ls; done",
        "read {1} <<< '{0}'",
        "printf -v {1} %s '{0}'",
        ": ${{{1}:='{0}'}}; ls",
        "x='{0}'; {1}=$x; echo $((x))",
        "x='{0}'; a=([x]=1)",
        "x='{0}'; echo ${{a[x]}}",
        "x='{0}'; [[ x -eq 1 ]]",
        "x='{0}'; bash -c 'echo $(('$x'))'",
        "x='{0}'; eval 'echo $((x))'",
        "x='{0}'; test -v \"$x\"",
        "{1}='{0}' git status",
    )
    evaluated = st.tuples(st.sampled_from(EVALUATED), inner).map(lambda made: made[0].format(made[1]))
    return st.tuples(st.sampled_from(ways), evaluated, st.sampled_from(VARIABLES)).map(
        lambda made: made[0].format(made[1], made[2])
    )


def _put(frames: tuple[str, ...], inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(st.sampled_from(frames), inner).map(lambda made: made[0].format(made[1]))


def hostile() -> st.SearchStrategy[str]:
    payload = st.sampled_from(PAYLOADS)
    once = payload | _put(SHELLS, payload) | _put(WRAPPERS, payload) | assignments(payload)
    twice = _put(FRAMES, once) | _put(SHELLS, once) | _put(WRAPPERS, once) | assignments(once)
    return once | twice | _put(FRAMES, twice) | _put(FRAMES, _put(WRAPPERS, twice))
