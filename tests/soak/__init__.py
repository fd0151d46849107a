"""The soak: a mixed load on a real server that is killed again and again, and every promise checked over all of it."""
