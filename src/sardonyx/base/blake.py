"""The hash function BLAKE2b, without the import of OpenSSL that ``hashlib`` begins with."""

try:
    from _blake2 import blake2b
except ImportError:  # An interpreter that has the function elsewhere.
    from hashlib import blake2b

__all__ = ["blake2b"]
