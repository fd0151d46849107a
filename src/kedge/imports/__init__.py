"""Finds set-ups of other agents, and takes over what the user picks: `kedge import`."""
