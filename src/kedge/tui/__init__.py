"""The terminal interface: a client of the server like any other."""
