"""Encrypted model files: written for recipients, opened into memory, never into plain files.

The format, the threats and the limits are in docs/design/trust.md and docs/design/threat-model.md. Names are imported
on first use: a process that finds its program in the store imports no loader of models.
"""

from typing import TYPE_CHECKING

from sardonyx.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from sardonyx.trust.encryption.files import decrypt, encrypt, rewrap
    from sardonyx.trust.encryption.key_ring import AddedKey, add_key
    from sardonyx.trust.encryption.key_text import Key, generate_key, parse_key, read_key, write_key
    from sardonyx.trust.encryption.licence import Licence, machine_id, moment
    from sardonyx.trust.encryption.recipients import KeyProvider, Passphrase

__all__ = [
    "AddedKey",
    "Key",
    "KeyProvider",
    "Licence",
    "Passphrase",
    "add_key",
    "decrypt",
    "encrypt",
    "generate_key",
    "machine_id",
    "moment",
    "parse_key",
    "read_key",
    "rewrap",
    "write_key",
]

__getattr__ = lazy_names(
    __name__,
    {
        "sardonyx.trust.encryption.files": ["decrypt", "encrypt", "rewrap"],
        "sardonyx.trust.encryption.key_ring": ["AddedKey", "add_key"],
        "sardonyx.trust.encryption.key_text": ["Key", "generate_key", "parse_key", "read_key", "write_key"],
        "sardonyx.trust.encryption.licence": ["Licence", "machine_id", "moment"],
        "sardonyx.trust.encryption.recipients": ["KeyProvider", "Passphrase"],
    },
)
