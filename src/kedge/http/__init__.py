"""An HTTP/1.1 client: requests and a parser without I/O, connections with TLS and proxies, and a pool of them."""
