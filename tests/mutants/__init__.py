"""Mutation testing: small mistakes are planted in a copy of the sources, one at a time, and the tests must notice."""
