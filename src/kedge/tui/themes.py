"""The interface's own two themes, and what all themes have in common: one style of selection, no visible trough."""

from __future__ import annotations

from collections.abc import Mapping

from textual.color import Color
from textual.theme import Theme

AUTO = "auto"  # the theme that suits the terminal's background
DARK_THEME, LIGHT_THEME = "kedge-dark", "kedge-light"
SELECTED = "$block-cursor-text-style $block-cursor-foreground on $block-cursor-background"  # for `Content`
SELECTION_SHARE = 0.28  # of the primary color in the background of what is selected

# The primary color is the only accent of the interface; secondary and accent are for syntax and links.
THEMES = (
    Theme(
        name=DARK_THEME,
        dark=True,
        background="#0e1317",
        surface="#161d23",
        panel="#222c34",
        foreground="#d9e1e6",
        primary="#45c4b0",
        secondary="#7fb2e5",
        accent="#c3a6ea",
        success="#8ccf7e",
        warning="#e5b567",
        error="#ef7d84",
        variables={
            "text-primary": "#45c4b0",
            "text-secondary": "#7fb2e5",
            "text-accent": "#c3a6ea",
            "text-success": "#8ccf7e",
            "text-warning": "#e5b567",
            "text-error": "#ef7d84",
            "text-muted": "#8b9aa5",
            "foreground-muted": "#8b9aa5",
        },
    ),
    Theme(
        name=LIGHT_THEME,
        dark=False,
        background="#fbfcfc",
        surface="#eff3f4",
        panel="#dfe6e9",
        foreground="#1d272d",
        primary="#00796b",
        secondary="#1f64a0",
        accent="#7347a8",
        success="#2b7a30",
        warning="#946000",
        error="#c12d3b",
        variables={
            "text-primary": "#00796b",
            "text-secondary": "#1f64a0",
            "text-accent": "#7347a8",
            "text-success": "#2b7a30",
            "text-warning": "#946000",
            "text-error": "#c12d3b",
            "text-muted": "#5b6871",
            "foreground-muted": "#5b6871",
        },
    ),
)


def unify_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return a theme's variables with the same selection in every list, and scroll bars without a trough."""
    same = {"block-cursor-text-style": "bold", "block-cursor-blurred-text-style": "bold"}
    background, primary = Color.parse(variables["background"]), Color.parse(variables["primary"])
    surface = Color.parse(variables["surface"])
    if background.ansi is None and primary.ansi is None and surface.ansi is None:
        selection = surface.blend(primary, SELECTION_SHARE).hex
        for state in ("", "blurred-"):
            same[f"block-cursor-{state}background"] = selection
            same[f"block-cursor-{state}foreground"] = variables["foreground"]
        same["scrollbar"] = background.blend(primary, 0.35).hex
        same["scrollbar-hover"] = same["scrollbar-active"] = background.blend(primary, 0.6).hex
        for state in ("", "-hover", "-active"):
            same[f"scrollbar-background{state}"] = "transparent"
        same["scrollbar-corner-color"] = "transparent"
        same["screen-selection-background"] = background.blend(primary, 0.4).hex
    else:
        same["block-cursor-blurred-background"] = variables["block-cursor-background"]
        same["block-cursor-blurred-foreground"] = variables["block-cursor-foreground"]
    return {**variables, **same}
