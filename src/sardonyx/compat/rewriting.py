"""One rewriting run for the drop-in modules: what they share below their parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import onnx_ir as ir

from sardonyx.rewrite import pipeline
from sardonyx.rewrite.engine import Engine, PatchFailed, RulesUndoEachOther
from sardonyx.rewrite.language import Rule
from sardonyx.rewrite.rewrite_context import Settings


def rewritten(
    fresh: Callable[[], ir.Model], run: Callable[[ir.Model, Settings], Engine], settings: Settings
) -> tuple[ir.Model, Engine]:
    """Rewrite a model, leaving out each rewrite that turns out to be impossible on the way.

    Args:
        fresh: Gives the model as it was, every time anew.
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
            # The model is half changed: once more from the start, without this rewrite.
            settings = replace(settings, banned=settings.banned | {(failure.rule, failure.site)})
        except RulesUndoEachOther as failure:
            settings = replace(settings, off=settings.off | set(failure.rules))


def selection(skip: Iterable[str] = (), extra: Sequence[str] = (), rules: Iterable[Rule] = ()) -> pipeline.Selection:
    """The passes that run by default but for ``skip``, and ``extra`` ones beside them.

    Raises:
        OptionError: an extra name is no pass. A name to skip that is no pass skips nothing.
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
