"""Handlers, one module for each tag of the OpenAPI document. A handler neither decodes nor decides: it calls the engine or the agent."""
