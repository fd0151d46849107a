"""HTTP requests to public addresses, and HTML converted to text."""
