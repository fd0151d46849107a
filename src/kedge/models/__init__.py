"""Model calls: selection of a model, API keys, wires (request and stream codecs), and the HTTP client."""
