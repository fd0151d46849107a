"""Scripts and quotings made at random, for the properties."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

HARMLESS = ("ls", "cat a.txt", "echo 'a b'", "grep -n x a.txt", "git status -s", "wc -l src/main.py", "true", "pwd -P")
_TEXT = st.text(st.sampled_from("ab/.-_ $`\"'\\*?[]{}~#!&|;<>()é=,"), max_size=8)

# Ways to put one or two scripts into a larger one.
_FRAMES = (
    "{0}; {1}",
    "{0} && {1}",
    "{0} || {1}",
    "{0} | {1}",
    "{0}\n{1}",
    " ( {0}; {1} )",
    "{{ {0}; {1}; }}",
    "if {0}; then {1}; fi",
    "if true; then {0}; else {1}; fi",
    "while {0}; do {1}; break; done",
    "for i in 1 2; do {0}; {1}; done",
    "case a in a) {0};; *) {1};; esac",
    'echo $({0}) "$({1})"',
    "x=$({0}); {1}",
    "! ( {0} ); {1}",
    "echo ${{y:-$({0})}}; {1}",
    "cat <({0}); {1}",
    "[[ -n $({0}) ]] && {1}",
    'cat <<< "$({0})"; {1}',
    "{0} > /dev/null 2>&1; {1}",
    "{0} & {1}; wait",
)
# Those who call a function are asked about it where it may not have come to be defined.
_ALL_FRAMES = (*_FRAMES, "! {0}; {1}", "time {0}; {1}", "f() {{ {0}; }}; f; {1}", "function f {{ {0}; }}; {1} && f")
# Ways to run a simple command by another.
_RUNNERS = (
    "{0}",
    "env {0}",
    "timeout 5 {0}",
    "nice -n 1 {0}",
    "nohup {0}",
    "command {0}",
    "env LC_ALL=C timeout 5 {0}",
    "sh -c '{0}'",
    'bash -c "{0}"',
    "eval '{0}'",
    "true | xargs {0}",
    "find . -exec {0} \\;",
    "\\{0}",
    "''{0}",
    "LC_ALL=C {0}",
    "2>/dev/null {0}",
    "time {0}",
    "echo `{0}`",
    'echo $(echo "$({0})")',
    "cat <<EOF\n$({0})\nEOF\n",
    "echo $(( $({0}) + 1 ))",
    "a=($({0}))",
    "export LC_ALL=$({0})",
    "exec {0}",
)


def _framed(
    frames: Sequence[str], first: st.SearchStrategy[str], second: st.SearchStrategy[str]
) -> st.SearchStrategy[str]:
    return st.tuples(st.sampled_from(frames), first, second).map(lambda made: made[0].format(made[1], made[2]))


def scripts(names: Sequence[str]) -> st.SearchStrategy[str]:
    """Of simple commands with these names, in all ways that the shell knows to run one."""
    simple = st.tuples(st.sampled_from(names), quoted()).map(lambda made: f"{made[0]} {made[1][1]}")
    run = st.tuples(st.sampled_from(_RUNNERS), st.sampled_from(names))
    plain = run.map(lambda made: made[0].format(f"{made[1]} x"))
    leaf = simple | plain
    # A here-document ends a line, so that nothing may follow it on the same one.
    return (
        st.recursive(
            leaf.filter(lambda script: "<<" not in script),
            lambda inner: _framed(_ALL_FRAMES, inner, inner),
            max_leaves=5,
        )
        | leaf
    )


def harmless_scripts() -> st.SearchStrategy[str]:
    return st.recursive(st.sampled_from(HARMLESS), lambda inner: _framed(_FRAMES, inner, inner), max_leaves=5)


def hidden_in(around: st.SearchStrategy[str], hostile: str) -> st.SearchStrategy[str]:
    """The hostile command, run in some way, somewhere among harmless scripts."""
    run = st.sampled_from(_RUNNERS).map(lambda frame: frame.format(hostile))
    inline = run.filter(lambda script: "<<" not in script)

    def wrap(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        return _framed(_ALL_FRAMES, around, inner) | _framed(_ALL_FRAMES, inner, around)

    return run | wrap(inline) | wrap(wrap(inline))


@st.composite
def quoted(draw: st.DrawFn, text: str | None = None) -> tuple[str, str]:
    """A word, and one of the many ways to write it."""
    meant = draw(_TEXT) if text is None else text
    written = ""
    index = 0
    while index < len(meant):
        end = draw(st.integers(index + 1, len(meant)))
        piece = meant[index:end]
        written += draw(st.sampled_from([_single, _double, _ansi, _escaped]))(piece)
        index = end
    return meant, written or "''"


def _single(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _double(text: str) -> str:
    return '"' + "".join(f"\\{char}" if char in '$`"\\' else char for char in text) + '"'


def _ansi(text: str) -> str:
    return "$'" + "".join(f"\\x{byte:02x}" for byte in text.encode()) + "'"


def _escaped(text: str) -> str:
    return "".join(char if char.isalnum() and char.isascii() else f"\\{char}" for char in text)
