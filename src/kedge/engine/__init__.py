"""Runs: accepted, scheduled, canceled, ended, recovered. Knows no HTTP and no model."""
