"""The story: events encoded once into a ring of bytes, and clients that are positions in it."""
