"""The tools of the agent (`builtin/`), and the code they share."""
