"""The theme's colors as styles. Color never carries meaning alone: with `NO_COLOR` everything stays readable."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import cast

from rich.style import Style
from textual.app import App
from textual.color import Color, ColorParseError
from textual.widget import Widget

from kedge.tui.colorless import get_contrast

MIN_CONTRAST = 4.5  # of text, as WCAG requires


class Palette:
    def __init__(self, variables: Mapping[str, str], background: Color, *, is_dark: bool) -> None:
        self._variables = variables
        self._background = background
        self._is_ansi = background.ansi is not None
        self._foreground = self._color("foreground", Color(224, 224, 224) if is_dark else Color(31, 31, 31))
        self.text = self._ink(self._foreground)
        # The background of everything.
        self.ground = Style.null() if self._is_ansi else Style(bgcolor=background.rich_color)
        muted = background.blend(self._foreground, 0.55)
        self.muted = Style(dim=True) if self._is_ansi else self._ink(self._readable(muted))
        self.primary = self._read_color("text-primary")
        self.secondary = self._read_color("text-secondary")
        self.accent = self._read_color("text-accent")
        self.success = self._read_color("text-success")
        self.warning = self._read_color("text-warning")
        self.error = self._read_color("text-error")
        self.bar = self._ink(self._color("primary", self._foreground))
        self.heading = self.primary + Style(bold=True)
        self.quote = self.muted + Style(italic=True)
        self.code = self.accent + self._tint(self._foreground, 0.07)
        self.block = self.text + self._tint(self._foreground, 0.04)  # the background of code
        self.panel = self.text + self._tint(self._color("primary", self._foreground), 0.10)  # the background of prompts
        self.chip = self.secondary + self._tint(self._color("secondary", self._foreground), 0.18)
        self.added = self._tint(self._color("success", self._foreground), 0.16)
        self.removed = self._tint(self._color("error", self._foreground), 0.16)
        underlined = Style(underline=True) if self._is_ansi else Style.null()
        self.added_word = self._tint(self._color("success", self._foreground), 0.42) + underlined
        self.removed_word = self._tint(self._color("error", self._foreground), 0.42) + underlined

    def syntax(self, kind: str) -> Style:
        """Return the style of a kind of token: its Pygments name without `Token.`."""
        return _syntax(self, kind)

    def _read_color(self, name: str) -> Style:
        return self._ink(self._readable(self._color(name, self._foreground)))

    def _readable(self, color: Color) -> Color:
        """Blend a color with the text color until its contrast is sufficient."""
        if self._is_ansi or color.ansi is not None:
            return color
        while color != self._foreground and get_contrast(color, self._background) < MIN_CONTRAST:
            nearer = color.blend(self._foreground, 0.15)
            color = self._foreground if nearer == color else nearer
        return color

    def _color(self, name: str, otherwise: Color) -> Color:
        try:
            color = Color.parse(self._variables[name])
        except (KeyError, ColorParseError):  # such as `auto 60%`
            return otherwise
        if color.ansi is not None or color.a == 1:
            return color
        return self._background.blend(color.with_alpha(1), color.a)

    def _ink(self, color: Color) -> Style:
        return Style(color=color.rich_color)

    def _tint(self, color: Color, share: float) -> Style:
        """Return a background. None in ANSI themes: which colors are readable on it is unknown."""
        if self._is_ansi or color.ansi is not None:
            return Style.null()
        return Style(bgcolor=self._background.blend(color, share).rich_color)


@lru_cache(4096)
def _syntax(palette: Palette, kind: str) -> Style:
    while kind:
        if kind in _SYNTAX:
            ink, bold, italic = _SYNTAX[kind]
            style: Style = getattr(palette, ink)
            return style + Style(bold=bold or None, italic=italic or None)
        kind = kind.rpartition(".")[0]
    return palette.text


_SYNTAX: dict[str, tuple[str, bool, bool]] = {
    "Comment": ("muted", False, True),
    "Comment.Preproc": ("secondary", False, False),
    "Generic.Deleted": ("error", False, False),
    "Generic.Emph": ("text", False, True),
    "Generic.Heading": ("primary", True, False),
    "Generic.Inserted": ("success", False, False),
    "Generic.Strong": ("text", True, False),
    "Generic.Subheading": ("primary", False, False),
    "Keyword": ("accent", False, False),
    "Keyword.Constant": ("warning", False, False),
    "Keyword.Type": ("secondary", False, False),
    "Literal.Number": ("warning", False, False),
    "Literal.String": ("success", False, False),
    "Literal.String.Doc": ("success", False, True),
    "Literal.String.Escape": ("warning", False, False),
    "Literal.String.Interpol": ("warning", False, False),
    "Name.Attribute": ("secondary", False, False),
    "Name.Builtin": ("secondary", False, False),
    "Name.Class": ("primary", True, False),
    "Name.Constant": ("warning", False, False),
    "Name.Decorator": ("secondary", False, False),
    "Name.Exception": ("error", False, False),
    "Name.Function": ("primary", False, False),
    "Name.Namespace": ("text", False, False),
    "Name.Tag": ("primary", False, False),
    "Name.Variable": ("text", False, False),
    "Operator.Word": ("accent", False, False),
}


def get_palette(widget: Widget) -> Palette:
    """Return the palette for a widget's theme and background."""
    app = cast(App[object], widget.app)
    base, background = widget.background_colors
    return _palette(tuple(app.theme_variables.items()), base + background, app.current_theme.dark)


@lru_cache(8)
def _palette(variables: tuple[tuple[str, str], ...], background: Color, is_dark: bool) -> Palette:
    return Palette(dict(variables), background, is_dark=is_dark)
