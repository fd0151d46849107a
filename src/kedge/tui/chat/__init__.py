"""The transcript: blocks in, lines of a terminal out; only what is seen is drawn."""
