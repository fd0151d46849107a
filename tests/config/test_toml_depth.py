"""Keys of too many parts are found whatever strings and comments are around them, and nothing else is taken for one."""

from __future__ import annotations

import tomllib
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedge.config.files import MAX_PARTS, find_deep_key

DEEP = "deep." * MAX_PARTS + "deep = 1"
# Lines that are TOML alone or together; some open a string that others close, with a deep key in it or behind it.
PIECES = (
    DEEP, "[" + "deep." * MAX_PARTS + "deep]", '"deep".' * MAX_PARTS + "'deep' = 1", "deep . " * MAX_PARTS + "deep = 1",
    f"x = {{{DEEP}}}", f"# {DEEP}", f'x = "{DEEP} \\" # {DEEP}" # {DEEP}', f"x = '{DEEP} \\' # {DEEP}",
    f'x = """{DEEP}', f'{DEEP}"""', f"x = '''{DEEP}", f"{DEEP}'''", 'x = """"""', 'x = """a"""""', "x = ''''a''''",
    'x = """\\"""', '\\"""', 'x = ""', "x = ''", 'x = "\'"', "x = '\"'", "x = [", "]",
    "x = [1.5, 1979-05-27T07:32:00.5Z, 2.5]",
    "a." * (MAX_PARTS - 1) + "b = 1", "[t]", "[[t.u]]", "#", '"""', "'''",
)  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=6))
def test_in_a_text_that_python_accepts_exactly_the_deep_keys_are_found(pieces: list[str]) -> None:
    lines = [piece.replace("x =", f"x{i} =").replace("[t", f"[t{i}") for i, piece in enumerate(pieces)]
    text = "\n".join(lines)
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    assert (find_deep_key(text) is not None) == has_deep_key(values)


def has_deep_key(values: object) -> bool:
    if isinstance(values, list):
        return any(map(has_deep_key, cast("list[object]", values)))
    if not isinstance(values, dict):
        return False
    table = cast("dict[str, object]", values)
    return "deep" in table or any(map(has_deep_key, table.values()))


def test_the_line_is_the_keys_own() -> None:
    assert find_deep_key(f'a = """\n{DEEP}\n"""\n# {DEEP}\n\n{DEEP}') == 6


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "piece", ['"', '""', '"""', "'", "'''", '"\\', '"""\\', "\\", "#", '" #', "a. ", ".", '"a".', '\\"""']
)
def test_the_scan_is_linear(piece: str) -> None:
    find_deep_key((piece * 1_000_000)[:1_000_000] + "." * MAX_PARTS)
