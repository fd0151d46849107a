"""A client of MCP servers. Imported when a workspace has a server configured, and never before."""
