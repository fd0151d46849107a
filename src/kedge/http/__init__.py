"""TODO: say in one sentence what is in http."""
