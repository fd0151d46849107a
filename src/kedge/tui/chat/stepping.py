"""From block to block with the keys: which one is next, and how far to scroll for it."""

from __future__ import annotations

from kedge.tui.chat.flow import Flow


def stepped(flow: Flow, selected: str | None, step: int, top: int, height: int) -> tuple[str | None, int | None]:
    """The block that is selected after a step, and the line to scroll to, if any.

    `top` and `height` are what is in sight. A block that goes on out of sight is read on before it is left.
    """
    if not flow.entries:
        return None, None
    at = None if selected is None else flow.index_of(selected)
    bottom = top + height
    if at is None:
        place = flow.place(bottom - 1 if step < 0 else top)
        at = place.entry if place else len(flow.entries) - 1
    elif (step > 0 and flow.tops[at + 1] > bottom) or (step < 0 and flow.tops[at] + 1 < top):
        return selected, top + step * max(1, height // 2)
    else:
        at = max(0, min(len(flow.entries) - 1, at + step))
    first, end = flow.tops[at], flow.tops[at + 1]
    y = None
    if first < top:
        y = max(first, end - height)
    elif end > bottom:
        y = min(first, end - height)
    return flow.entries[at].block.key, y
