"""The protocol over HTTP/1.1."""
