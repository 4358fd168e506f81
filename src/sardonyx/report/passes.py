"""What is to be said of each pass of the optimizer."""

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
        name: Its name.
        description: What it does: what each of its rules does.
        exactness: The weakest promise of its rules: ``exact``, ``reassociates`` or ``approximates``.
        default: Whether a run without a list of passes includes it.
        targets: Targets it is meant for; empty for all.
        opset: The lowest operator set at which one of its rules can fire.
        rules: Number of its rules.
    """

    name: str
    description: str
    exactness: str
    default: bool
    targets: tuple[str, ...]
    opset: int
    rules: int

    def as_dict(self) -> dict[str, Any]:
        """The pass as plain data."""
        return asdict(self)


def describe_passes() -> list[PassInfo]:
    """All passes, by name."""
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
