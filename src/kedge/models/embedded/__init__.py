"""Embedded models: GGUF files run by llama.cpp in a child process, and the starter model that needs no API key."""
