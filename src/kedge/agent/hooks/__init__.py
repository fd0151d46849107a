"""Hooks: commands of the user that run at events. Imported only if some are configured."""
