"""Commands: their environment, how they are started, their output, and background jobs."""
