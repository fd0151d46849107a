"""The agent on a real engine and store, against the scripted model server."""
