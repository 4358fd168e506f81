"""Compiled variants of a model with other outputs, for calls that request inner tensors."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from sardonyx.base import background_threads
from sardonyx.errors import SardonyxError

if TYPE_CHECKING:
    import onnx_ir as ir

    from sardonyx.compiler.program import Program
    from sardonyx.core.eval.run_context import RunContext
    from sardonyx.runtime.compiled.compiled_model import NativeModel

_CAPACITY = 4
"""Variants per model; their common weights are in memory once."""


Compile: TypeAlias = "Callable[[Sequence[str]], NativeModel | None]"
"""Compiles the model with these outputs; None if the model with these outputs cannot be compiled."""


class OutputVariants:
    """The variants of a model that calls have requested, least recently used first.

    Args:
        output_names: The outputs of the model itself: calls for no others need no variant.
        compile: Compiles a variant.
        wait: If True, the first call that requests a variant waits for its compilation.
    """

    def __init__(self, output_names: Sequence[str], compile: Compile, *, wait: bool) -> None:
        self._output_names = frozenset(output_names)
        self._compile = compile
        self._wait = wait
        self._variants: OrderedDict[tuple[str, ...], NativeModel | None] = OrderedDict()
        self._lock = threading.Lock()

    def accepts(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> bool:
        """Return True if a call requests other tensors than the outputs of the model."""
        return bool(output_names) and not self._output_names.issuperset(output_names or ())

    def run(
        self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], context: RunContext
    ) -> list[Any] | None:
        """Run on compiled code; None if these outputs have no compiled code, or not yet.

        Args:
            output_names: Names of tensors of the main graph.
            feeds: All inputs.
            context: The limits of this run.

        Raises:
            Fault: Compiled code has no result for the data.
        """
        names = output_names or ()
        key = tuple(dict.fromkeys(names))
        with self._lock:
            is_requested = key in self._variants
            variant = self._variants.get(key)
            self._variants[key] = variant
            self._variants.move_to_end(key)
            while len(self._variants) > _CAPACITY:
                self._variants.popitem(last=False)
        if not is_requested:
            if self._wait:
                self._add(key)
            else:
                background_threads.start("sardonyx-compile", self._add, key)
            variant = self._variants.get(key)
        if variant is None or not variant.accepts(None, feeds):
            return None
        results = dict(zip(key, variant.run(None, feeds, context), strict=True))
        return [results[name] for name in names]

    def programs(self) -> list[tuple[str, Program, int]]:
        """Return the programs of all compiled variants; see :data:`.memory.Programs`."""
        with self._lock:
            compiled = [(names, variant) for names, variant in self._variants.items() if variant is not None]
        return [(f"with {', '.join(names)} as outputs", variant.program, 0) for names, variant in compiled]

    def release(self) -> None:
        """Forget all variants; later calls compile them again."""
        with self._lock:
            self._variants.clear()

    def _add(self, names: tuple[str, ...]) -> None:
        variant = self._compile(names)
        with self._lock:
            if names in self._variants:
                self._variants[names] = variant


def with_outputs(model: ir.Model, names: Sequence[str]) -> ir.Model | None:
    """Return a copy of a model whose outputs are these tensors; None if the main graph lacks one of them."""
    from sardonyx.runtime.editing.draft import Draft

    draft = Draft(model)
    outputs = {str(value.name) for value in draft.model.graph.outputs}
    try:
        for name in names:
            if name not in outputs:
                draft.add_output(name)
        draft.validate()
    except SardonyxError:
        return None
    by_name = {str(value.name): value for value in draft.model.graph.outputs}
    draft.model.graph.outputs[:] = [by_name[name] for name in names]
    return draft.model
