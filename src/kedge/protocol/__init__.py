"""Types of the HTTP API and the event stream, and rules that both ends share. Imports nothing else of Kedge."""
