"""The server: the engine on the wire. Thin: decode, call the engine, encode."""
