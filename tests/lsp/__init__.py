"""Language servers: the protocol, real servers, and servers that misbehave."""
