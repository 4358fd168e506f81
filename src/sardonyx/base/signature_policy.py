"""State of the signature policy of the process; the policy itself is above, in `sardonyx.trust.signing`."""

from __future__ import annotations

import os

VARIABLE = "SARDONYX_TRUST_POLICY"
"""Environment variable with the path of a policy file for every session of the process."""

policies: list[object] = []
"""The policies that the program set; the last one is in force, before that of the environment."""


def is_active() -> bool:
    """Return True if sessions must verify the signature of a model before they use the model."""
    return bool(policies) or bool(os.environ.get(VARIABLE))
