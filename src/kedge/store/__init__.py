"""Durable state: runs, sessions, messages, requests and the log, changed only by named transactions."""
