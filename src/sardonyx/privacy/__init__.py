"""Differentially private answers: noise on clipped outputs, and a ledger of the privacy that clients have used."""

from sardonyx.privacy.accounting import Budget
from sardonyx.privacy.answers import PrivateAnswers, read_policies
from sardonyx.privacy.ledger import Ledger
from sardonyx.privacy.noise import Noise

__all__ = ["Budget", "Ledger", "Noise", "PrivateAnswers", "read_policies"]
