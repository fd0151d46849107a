"""The choice of a model for a run, and the list of models that can be chosen."""
