"""Kedge: an AI coding agent for the terminal. Importing this package imports nothing else."""
