"""Models: pure adapters from history to a request and from events to deltas, over one HTTP client."""
