"""Helpers of the chat's tests: a palette, blocks of every kind, and an application around the widget."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.segment import Segment
from textual.app import App, ComposeResult
from textual.color import Color
from textual.strip import Strip

from kedge.protocol.messages import ToolResult
from kedge.protocol.runs import Usage
from kedge.tui.chat.palette import Palette
from kedge.tui.chat.transcript import Transcript
from kedge.tui.state.blocks import (
    Block,
    CallBlock,
    CallState,
    EndBlock,
    NoteBlock,
    PromptBlock,
    ReasoningBlock,
    ShellBlock,
    TextBlock,
)
from kedge.tui.themes import THEMES

PALETTE = Palette(
    {"foreground": "#e0e0e0", "primary": "#0178D4", "success": "#4EBF71", "error": "#B93C5B", "secondary": "#004578"},
    Color.parse("#121212"),
    is_dark=True,
)

DIFF = """--- src/anchor.py
+++ src/anchor.py
@@ -10,5 +10,6 @@
 def drop(depth):
-    return depth
+    # seven times the depth
+    return depth * 7
 # below
 class Anchor:
     pass
@@ -40,3 +41,3 @@
 a = 1
-b = 2
+b = 3
 c = 4
"""

MARKDOWN = """# Holding ground

A kedge is a *small* anchor with **flukes**, see `anchor.py` and [the manual](https://example.com/kedge).

- mud
- sand
  - fine
  - coarse
- [ ] rock
- [x] weed

1. lower
2. veer

> Let it bite.

```python
def hold(rope: int) -> bool:
    return rope > 5  # times the depth
```

| ground | holds |
|--------|------:|
| mud    |  good |
| rock   |  poor |

---
"""


def texts(lines: Iterable[Sequence[Segment] | Strip]) -> list[str]:
    return ["".join(segment.text for segment in line).rstrip() for line in lines]


def call(
    name: str,
    given: str = "{}",
    state: CallState = "done",
    output: str = "",
    *,
    key: str = "",
    revision: int = 0,
    metadata: dict[str, object] | None = None,
    images: int = 0,
    child: tuple[Block, ...] = (),
    child_session_id: str | None = None,
) -> CallBlock:
    is_over = state in ("done", "failed")
    result = ToolResult("1", name, output, is_error=state == "failed", metadata=metadata) if is_over else None
    return CallBlock(
        key=key or name,
        revision=revision,
        name=name,
        input=given,
        state=state,
        output=output,
        result=result,
        images=images,
        child=child,
        child_session_id=child_session_id,
    )


EDIT = call("edit", '{"path": "src/anchor.py"}', metadata={"diff": DIFF, "added": 3, "removed": 2})
TODOS = '{"todos": [{"content": "chart", "status": "completed"}, {"content": "sail", "status": "in_progress"}]}'
END = EndBlock(key="end", reason="end_turn", model="m-1", usage=Usage(12_345, 678, cost=0.0123))

KINDS: dict[str, list[Block]] = {
    "prompt": [
        PromptBlock(key="p", text="Find a place to anchor.\nMud if you can.", attachments=("chart.png", "notes.txt")),
        PromptBlock(key="long", text="\n".join(f"line {i}" for i in range(20))),
    ],
    "words": [
        TextBlock(key="w", text=MARKDOWN),
        TextBlock(key="cut", text="It **was** an attempt", is_interrupted=True),
    ],
    "thoughts": [
        ReasoningBlock(key="t1", text="The wind is north.\nSo the lee is south."),
        ReasoningBlock(key="t2", text="First this.\nThen that", is_open=True),
        ReasoningBlock(key="t3", text="", is_redacted=True),
    ],
    "calls": [
        call("bash", '{"command": "make test"}', output="\n".join(f"test {i} ok" for i in range(14))),
        call("bash", '{"command": "false"}', "failed", "no\n[exit code 1]", key="b2", metadata={"exit_code": 1}),
        call("bash", '{"command": "sleep 9', "writing", key="b3"),
        call("bash", '{"command": "rm -r build"}', "asking", key="b4"),
        call("view", '{"path": "src/anchor.py", "offset": 10, "limit": 5}', output="10 def drop\n11 pass"),
        call("grep", '{"pattern": "depth", "path": "src"}', "running"),
        call("fetch", '{"url": "https://example.com"}', "failed", "The host was not found."),
        call("write", '{"path": "a.py"}', "interrupted"),
        call("todos", TODOS),
        call("mcp_chart_find", '{"place": "bay", "depth": 7}', output="one\ntwo\nthree\nfour\nfive", images=1),
    ],
    "diff": [EDIT],
    "agent": [
        call(
            "agent",
            '{"title": "Sound the bay", "prompt": "x"}',
            "running",
            child=(TextBlock(key="c0", text="I look."), call("ls", '{"path": "bay"}', output="a\nb"), EDIT),
            child_session_id="s2",
        ),
        call("agent", '{"prompt": "Look around"}', output="Nothing there.", key="a2", child=(EDIT,)),
    ],
    "others": [
        ShellBlock(key="sh", command="git status", output="clean\n", exit_code=0),
        ShellBlock(key="sh2", command="make", output="broken\n", exit_code=2),
        NoteBlock(key="n1", kind="warning", text="the model is busy; again in 2 s"),
        NoteBlock(key="n2", kind="error", text="the key was refused"),
        NoteBlock(key="n3", kind="cancelled", text="cancelled"),
        NoteBlock(key="n4", kind="summary", text="the conversation was summarized", details="# All of it"),
        END,
    ],
}


class Chat(App[None]):
    def __init__(self, blocks: Sequence[Block] = (), theme: str = "kedge-dark") -> None:
        super().__init__()
        for each in THEMES:
            self.register_theme(each)
        self.theme = theme
        self.transcript = Transcript()
        self.first = blocks
        self.copied: list[str] = []
        self.opened: list[Block] = []

    def compose(self) -> ComposeResult:
        yield self.transcript

    def on_mount(self) -> None:
        self.transcript.show(self.first)
        self.transcript.focus()

    def on_transcript_copied(self, message: Transcript.Copied) -> None:
        self.copied.append(message.text)

    def on_transcript_opened(self, message: Transcript.Opened) -> None:
        self.opened.append(message.block)

    @property
    def seen(self) -> list[str]:
        return texts(self.transcript.render_line(y) for y in range(self.transcript.size.height))


def paragraphs(count: int, key: str = "w", words: str = "word") -> list[Block]:
    return [TextBlock(key=f"{key}{i}", text=f"{key} {i} {words}") for i in range(count)]
