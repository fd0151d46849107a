"""The chat: blocks in, lines of a terminal out. Only visible lines are drawn."""
