"""Compiled variants of a model with other outputs, for calls that request inner tensors, or few of the outputs."""

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

LEFT_OUT_BYTES = 64 << 10
"""Least bytes of outputs that are not requested, for a variant without them; an open size counts as 1."""

SUBSET_CALLS = 2
"""Calls for the same few outputs, after which a variant without the others is compiled."""

_MOST_SUBSETS = 64
"""Sets of requested outputs that are counted."""


Compile: TypeAlias = "Callable[[Sequence[str]], NativeModel | None]"
"""Compiles the model with these outputs; None if the model with these outputs cannot be compiled."""


class OutputVariants:
    """The variants of a model that calls have requested, least recently used first.

    Inner tensors need a variant. Calls for few of the outputs do not; a variant for these is compiled while the model
    itself answers, if the outputs left out are large.

    Args:
        output_bytes: The outputs of the model itself, with their sizes in bytes.
        compile: Compiles a variant.
        wait: If True, the first call that requests inner tensors waits for the compilation.
    """

    def __init__(self, output_bytes: Mapping[str, int], compile: Compile, *, wait: bool) -> None:
        self._output_names = frozenset(output_bytes)
        self._output_bytes = output_bytes
        self._subsets: dict[tuple[str, ...], NativeModel | int | None] = {}
        self._compile = compile
        self._wait = wait
        self._variants: OrderedDict[tuple[str, ...], NativeModel | None] = OrderedDict()
        self._lock = threading.Lock()

    def accepts(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> bool:
        """Return True if a call requests inner tensors, or few outputs for which there is a variant."""
        if not output_names:
            return False
        if not self._output_names.issuperset(output_names):
            return True
        subset = self.subset(output_names)
        return subset is not None and subset.accepts(None, feeds)

    def subset(self, output_names: Sequence[str]) -> NativeModel | None:
        """Return the variant for few outputs of the model, if it is compiled; else count the call."""
        key = tuple(output_names)
        known = self._subsets.get(key, 0)
        if not isinstance(known, int):
            return known
        with self._lock:
            if not known and not self._is_worthwhile(key):
                return None
            self._subsets[key] = known + 1
            starts = known + 1 == SUBSET_CALLS
        if starts:
            background_threads.start("sardonyx-compile", self._add_subset, key)
        return None

    def _is_worthwhile(self, names: tuple[str, ...]) -> bool:
        if not names or len(self._subsets) >= _MOST_SUBSETS or len(set(names)) < len(names):
            return False
        return sum(size for name, size in self._output_bytes.items() if name not in names) >= LEFT_OUT_BYTES

    def _add_subset(self, names: tuple[str, ...]) -> None:
        compiled = sum(not isinstance(subset, int) for subset in self._subsets.values())
        variant = self._compile(names) if compiled < _CAPACITY else None
        with self._lock:
            if names in self._subsets:
                self._subsets[names] = variant

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
        if self._output_names.issuperset(names):
            subset = self._subsets.get(tuple(names))
            return None if subset is None or isinstance(subset, int) else subset.run(None, feeds, context)
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
            known = [*self._variants.items(), *self._subsets.items()]
        compiled = [(names, x) for names, x in known if x is not None and not isinstance(x, int)]
        return [(f"with {', '.join(names)} as outputs", variant.program, 0) for names, variant in compiled]

    def release(self) -> None:
        """Forget all variants; later calls compile them again."""
        with self._lock:
            self._variants.clear()
            self._subsets.clear()

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
