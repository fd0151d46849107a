"""Language servers: diagnostics and navigation for the agent. Imported when the first one starts."""
