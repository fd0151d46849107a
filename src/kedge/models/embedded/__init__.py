"""The model inside: any GGUF file, run by llama.cpp in a child process, and the starter that needs no key."""
