"""The agent: one turn, from history to a model's step to the end of the run."""
