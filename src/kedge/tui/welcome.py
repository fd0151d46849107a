"""What an empty session shows: where one is, what answers, and how to begin."""

from __future__ import annotations

from textual.content import Content

from kedge.tui.quiet import Quiet
from kedge.version import VERSION


class Welcome(Quiet):
    """In the place of the chat until there is one."""

    def draw(self, place: str, model: str, help_key: str, palette_key: str) -> None:
        hints = (
            (help_key, "keys and commands"),
            (palette_key, "command palette"),
            ("@ / !", "a file, a command, a shell"),
        )
        width = max(len(key) for key, _ in hints) + 2
        lines = [
            Content.assemble(("kedge", "bold $primary"), (f" {VERSION}", "$foreground-muted")),
            Content.styled(place, "$foreground-muted"),
            Content(model) if model else Content.styled("no model yet", "$foreground-muted"),
            Content(""),
            *(Content.assemble((f"{key:<{width}}", "$text"), (what, "$foreground-muted")) for key, what in hints),
        ]
        self.show(Content("\n").join(lines))
