"""Records of the files that runs change, and undo, redo and fork."""
