"""Simulation: the engine under a seeded scheduler with virtual time, against a small model of the contract."""
