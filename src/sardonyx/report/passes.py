"""Descriptions of the optimizer's passes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sardonyx.rewrite.language import REGISTRY
from sardonyx.rewrite.pipeline import available_passes, describe
from sardonyx.rewrite.sweep import SWEEPS

LEAST_EXACT_FIRST = ("approximates", "reassociates", "exact")


@dataclass(frozen=True)
class PassInfo:
    """A pass.

    Attributes:
        name: Name of the pass.
        description: Effects of its rules.
        exactness: The weakest promise of its rules: ``exact``, ``reassociates`` or ``approximates``.
        default: True if a run without a list of passes includes the pass.
        targets: Targets for which the pass is meant; empty for all.
        opset: The lowest operator set at which one of the rules can fire.
        rules: Number of rules.
    """

    name: str
    description: str
    exactness: str
    default: bool
    targets: tuple[str, ...]
    opset: int
    rules: int

    def as_dict(self) -> dict[str, Any]:
        """Return the pass as plain data."""
        return asdict(self)


def describe_passes() -> list[PassInfo]:
    """Return all passes, by name."""
    return [_describe(name) for name in available_passes()]


def _describe(name: str) -> PassInfo:
    rules = [*REGISTRY.get(name, ()), *([SWEEPS[name].rule] if name in SWEEPS else [])]
    promises = {str(rule.exactness.value) for rule in rules}
    return PassInfo(
        name=name,
        description=describe(name),
        exactness=next(promise for promise in LEAST_EXACT_FIRST if promise in promises),
        default=any(rule.default for rule in rules),
        targets=() if any(not r.targets for r in rules) else tuple(sorted({t for r in rules for t in r.targets})),
        opset=min(rule.opset for rule in rules),
        rules=len(rules),
    )
