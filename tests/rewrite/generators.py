"""All generators: importing every family's tests registers them."""

from __future__ import annotations

import importlib
from pathlib import Path

from sardonyx.rewrite import pipeline
from sardonyx.rewrite.language import REGISTRY
from sardonyx.rewrite.sweep import SWEEPS


def load() -> None:
    """Import the tests of every family of rules."""
    for path in sorted((Path(__file__).parent / "rules").glob("test_*.py")):
        if path.stem != "test_every_rule_has_generator":
            importlib.import_module(f"tests.rewrite.rules.{path.stem}")


def labels() -> list[str]:
    """Every rule and sweep, each as ``pass/rule``."""
    assert pipeline.available_passes()
    rules = [rule.label for known in REGISTRY.values() for rule in known]
    return sorted({*rules, *(sweep.rule.label for sweep in SWEEPS.values())})


def target_of(label: str) -> str:
    """A target at which the rule runs."""
    name = label.split("/")[0]
    rules = [*REGISTRY.get(name, ()), *([SWEEPS[name].rule] if name in SWEEPS else [])]
    targets = next((rule.targets for rule in rules if label in (rule.label, rule.name)), frozenset())
    return "portable" if not targets or "portable" in targets else min(targets)
