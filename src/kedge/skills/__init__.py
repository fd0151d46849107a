"""Skills, custom commands and agents: found in a project, in the user's directories and in plugins; read, not run."""
