"""The engine over HTTP: decode a request, call the engine, encode the answer."""
