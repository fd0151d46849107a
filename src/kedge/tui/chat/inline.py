"""The inside of a paragraph: emphasis, code, links and images. Links are OSC 8 where the terminal knows it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.segment import Segment
from rich.style import Style

from kedge.protocol.text_safety import visible_line
from kedge.tui.chat.lines import Line
from kedge.tui.chat.palette import Palette

if TYPE_CHECKING:
    from markdown_it.token import Token

_BOLD, _ITALIC, _STRUCK = Style(bold=True), Style(italic=True), Style(strike=True)
_OPENS = {"strong_open": _BOLD, "em_open": _ITALIC, "s_open": _STRUCK}
_SAFE_LINK = re.compile(r"(?:https?|mailto|file):[\x21-\x7e]+", re.IGNORECASE)
_MAX_LINK = 2000  # an address that is longer is no use in a terminal


def inline(tokens: Sequence[Token], base: Style, palette: Palette) -> Line:
    styles = [base]
    line: Line = []
    for token in tokens:
        kind = token.type
        if kind in _OPENS:
            styles.append(styles[-1] + _OPENS[kind])
        elif kind == "link_open":
            styles.append(styles[-1] + _link(str(token.attrGet("href") or ""), palette))
        elif kind.endswith("_close"):
            if len(styles) > 1:
                styles.pop()
        elif kind == "code_inline":
            line.append(Segment(visible_line(token.content), styles[-1] + palette.code))
        elif kind == "softbreak":
            line.append(Segment(" ", styles[-1]))
        elif kind == "hardbreak":
            line.append(Segment("\n", styles[-1]))
        elif kind == "image":
            line += _image(token, styles[-1], palette)
        elif token.content:
            line.append(Segment(visible_line(token.content), styles[-1]))
    return [segment for segment in line if segment.text]


def _link(address: str, palette: Palette) -> Style:
    style = palette.secondary + Style(underline=True)
    return style + Style(link=address) if len(address) <= _MAX_LINK and _SAFE_LINK.fullmatch(address) else style


def _image(token: Token, style: Style, palette: Palette) -> Line:
    address = str(token.attrGet("src") or "")
    name = visible_line(token.content) or visible_line(address)[:80] or "image"
    return [Segment("▣ ", palette.muted), Segment(name, style + _link(address, palette))]
