"""Data keys released to attested machines alone: a key provider, and the service that checks quotes."""

from sardonyx.trust.attestation.provider import AttestedProvider, attested
from sardonyx.trust.attestation.quotes import Evidence, Quotes, QuoteVerifier, TsmQuotes
from sardonyx.trust.attestation.release import Policy, ReleaseService, serve_keys

__all__ = [
    "AttestedProvider",
    "Evidence",
    "Policy",
    "QuoteVerifier",
    "Quotes",
    "ReleaseService",
    "TsmQuotes",
    "attested",
    "serve_keys",
]
