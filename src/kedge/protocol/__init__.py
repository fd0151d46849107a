"""What crosses the wire: runs, sessions, messages, events and errors. Imports nothing else of Kedge."""
