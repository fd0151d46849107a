"""The adapters: pure ones without a network, and the client against the scripted model server."""
