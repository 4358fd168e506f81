"""One rewriting run for the drop-in modules, independent of their parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import onnx_ir as ir

from sardonyx.rewrite import pipeline
from sardonyx.rewrite.engine.engine import Engine, PatchFailed, RulesUndoEachOther
from sardonyx.rewrite.language import Rule
from sardonyx.rewrite.rewrite_context import Settings


def rewrite_with_retries(
    fresh: Callable[[], ir.Model], run: Callable[[ir.Model, Settings], Engine], settings: Settings
) -> tuple[ir.Model, Engine]:
    """Rewrite a model, and start again without each rewrite that turns out to be impossible.

    Args:
        fresh: Returns a new copy of the original model.
        run: Rewrites a model in place.
        settings: Bounds of the run.

    Returns:
        The rewritten model, and the engine with the record.
    """
    while True:
        model = fresh()
        try:
            return model, run(model, settings)
        except PatchFailed as failure:
            # The model is partly rewritten: start again without this rewrite.
            settings = replace(settings, banned=settings.banned | {(failure.rule, failure.site)})
        except RulesUndoEachOther as failure:
            settings = replace(settings, off=settings.off | set(failure.rules))


def select_passes(
    skip: Iterable[str] = (), extra: Sequence[str] = (), rules: Iterable[Rule] = ()
) -> pipeline.Selection:
    """Return the default passes except ``skip``, and the ``extra`` passes.

    Raises:
        OptionError: An extra name is unknown. Unknown names in ``skip`` are ignored.
    """
    known = set(pipeline.available_passes())
    base = pipeline.select(skip=[name for name in skip if name in known], extra=rules)
    if not extra:
        return base
    more = pipeline.select(passes=extra)
    return pipeline.Selection(
        base.rules + tuple(rule for rule in more.rules if rule not in base.rules),
        base.sweeps + tuple(sweep for sweep in more.sweeps if sweep not in base.sweeps),
    )
