"""Variants of a model: the same model with other outputs, for calls that ask for tensors inside of it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from sardonyx.base import background_threads
from sardonyx.compiler.program import Program
from sardonyx.core.eval.run_context import RunContext
from sardonyx.errors import SardonyxError
from sardonyx.runtime.compiled.compiled_model import NativeModel
from sardonyx.runtime.editing.draft import Draft

_KEPT = 4
"""Variants of a model; weights that they have in common are once in memory."""


Make = Callable[[Sequence[str]], NativeModel | None]
"""Compiles the variant with these outputs; None where there is no compiled code for it."""


class Variants:
    """The variants of a model that calls have asked for.

    Args:
        at_once: Whether the first call for a variant waits until it is made.
    """

    def __init__(self, *, at_once: bool) -> None:
        self._at_once = at_once
        self._made: OrderedDict[tuple[str, ...], NativeModel | None] = OrderedDict()
        self._lock = threading.Lock()

    def run(self, names: Sequence[str], feeds: Mapping[str, Any], context: RunContext, make: Make) -> list[Any] | None:
        """Run on compiled code; None where there is none for these outputs, or not yet.

        Args:
            names: The outputs.
            feeds: All inputs.
            context: The limits of this run.
            make: Makes a variant, where it is the first call for one.

        Raises:
            Fault: Compiled code found something that it does not compute.
        """
        key = tuple(dict.fromkeys(names))
        with self._lock:
            begun = key in self._made
            variant = self._made.get(key)
            self._made[key] = variant
            self._made.move_to_end(key)
            while len(self._made) > _KEPT:
                self._made.popitem(last=False)
        if not begun:
            if self._at_once:
                self._make(key, make)
            else:
                background_threads.start("sardonyx-compile", self._make, key, make)
            variant = self._made.get(key)
        if variant is None or not variant.takes(None, feeds):
            return None
        found = dict(zip(key, variant.run(None, feeds, context), strict=True))
        return [found[name] for name in names]

    def programs(self) -> list[tuple[str, Program, int]]:
        """What those compute that are compiled, see :data:`.memory.Programs`."""
        with self._lock:
            made = [(names, variant) for names, variant in self._made.items() if variant is not None]
        return [(f"with {', '.join(names)} as outputs", variant.program, 0) for names, variant in made]

    def _make(self, names: tuple[str, ...], make: Make) -> None:
        variant = make(names)
        with self._lock:
            if names in self._made:
                self._made[names] = variant


def with_outputs(model: ir.Model, names: Sequence[str]) -> ir.Model | None:
    """The model with these tensors as its outputs; None where it has no such tensors."""
    draft = Draft(model)
    outputs = {str(value.name) for value in draft.model.graph.outputs}
    try:
        for name in names:
            if name not in outputs:
                draft.add_output(name)
        draft.settle()
    except SardonyxError:
        return None
    by_name = {str(value.name): value for value in draft.model.graph.outputs}
    draft.model.graph.outputs[:] = [by_name[name] for name in names]
    return draft.model
