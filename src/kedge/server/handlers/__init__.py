"""Handlers by subject. A handler neither decodes nor decides: it calls the engine or the agent."""
