"""Signatures of model files in the format of OpenSSF Model Signing, and the policy that sessions enforce."""

from sardonyx.trust.signing.policy import Policy, read_policy, use_policy
from sardonyx.trust.signing.signatures import Signed, Verifier, generate_signing_key, sign, verify

__all__ = ["Policy", "Signed", "Verifier", "generate_signing_key", "read_policy", "sign", "use_policy", "verify"]
