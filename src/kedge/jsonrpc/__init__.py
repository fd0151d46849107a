"""JSON-RPC with servers: messages, errors, and processes that speak over standard streams. For MCP and LSP."""
