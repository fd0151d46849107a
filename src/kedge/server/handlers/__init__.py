"""One module a subject; each handler decodes nothing, decides nothing, and calls the engine once."""
