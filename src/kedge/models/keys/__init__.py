"""API keys: where they come from (configuration, environment, login, command), and whether a provider accepts one."""
