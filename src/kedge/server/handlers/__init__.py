"""Handlers, one module for each tag of the OpenAPI document. A handler only calls the engine or the agent."""
