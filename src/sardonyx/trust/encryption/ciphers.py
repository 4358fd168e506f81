"""The primitives of the package ``cryptography``, imported by the functions that use them: the package is an extra."""

from sardonyx.base.extras import require

require("cryptography", "encrypt", "encryption")

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

__all__ = [
    "AESGCM",
    "HKDF",
    "SHA256",
    "Ed25519PrivateKey",
    "Ed25519PublicKey",
    "InvalidSignature",
    "InvalidTag",
    "Scrypt",
    "X25519PrivateKey",
    "X25519PublicKey",
]
