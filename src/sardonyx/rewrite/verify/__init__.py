"""Proof of equal outputs of two models: real or drawn inputs, several sizes, in a child process."""

from sardonyx.rewrite.verify.client import Verifier
from sardonyx.rewrite.verify.compare import Difference, Verdict

__all__ = ["Difference", "Verdict", "Verifier"]
