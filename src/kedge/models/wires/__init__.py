"""Wires: pure request encoders and stream decoders, one pair for each provider API."""
