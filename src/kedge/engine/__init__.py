"""Runs: accepted, scheduled, cancelled, ended, recovered. Knows no HTTP and no model."""
