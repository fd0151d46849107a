"""Logins to MCP servers over HTTP: OAuth 2.1 with PKCE, for a native client with a loopback redirect."""
