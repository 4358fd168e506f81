"""Compiled variants of a model with further inputs, for calls that feed inputs with a default value.

The model itself is compiled for its defaults, as if they were constants. The first sets of overridden inputs get a
variant of their own, in which all other defaults are constants. One general variant, in which every input with a
default is an argument, computes the calls with further sets.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from sardonyx.base import background_threads

if TYPE_CHECKING:
    import onnx_ir as ir

    from sardonyx.compiler.program import Program
    from sardonyx.core.eval.run_context import RunContext
    from sardonyx.runtime.compiled.compiled_model import NativeModel
    from sardonyx.runtime.compiled.value_specialization import SpecializedModel

_CAPACITY = 3
"""Variants with constant defaults, per model; each has weights packed for its own kernels."""

Compiled: TypeAlias = "NativeModel | SpecializedModel | None"

Compile: TypeAlias = "Callable[[Sequence[str]], Compiled]"
"""Compiles the model without the defaults of these inputs; None if this model cannot be compiled."""


class InputVariants:
    """The variants of a model that calls have needed.

    Args:
        required: The inputs without a default value.
        defaults: The inputs with a default value.
        output_names: The outputs of the model: other requests are not computed here.
        compile: Compiles a variant.
        default_values: Returns the default values by name.
        wait: If True, the first call that needs a variant waits for its compilation.
    """

    def __init__(
        self,
        required: Sequence[str],
        defaults: Sequence[str],
        output_names: Sequence[str],
        compile: Compile,
        default_values: Callable[[], Mapping[str, Any]],
        *,
        wait: bool,
    ) -> None:
        self._required = frozenset(required)
        self._defaults = tuple(defaults)
        self._inputs = self._required.union(defaults)
        self._output_names = frozenset(output_names)
        self._compile = compile
        self._default_values = default_values
        self._wait = wait
        self._variants: dict[tuple[str, ...], Compiled] = {}
        self._lock = threading.Lock()

    def accepts(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> bool:
        """Return True if a call feeds all required inputs and defaults, and requests outputs of the model alone."""
        if output_names is not None and not self._output_names.issuperset(output_names):
            return False
        return len(feeds) > len(self._required) and self._required <= feeds.keys() <= self._inputs

    def run(
        self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], context: RunContext
    ) -> list[Any] | None:
        """Run on compiled code; None if these inputs have no compiled code, or not yet.

        Args:
            output_names: Names of the requested outputs; None for all.
            feeds: The inputs, see :meth:`accepts`.
            context: The limits of this run.

        Raises:
            Fault: Compiled code has no result for the data.
            SardonyxError: See :meth:`.NativeModel.run`.
        """
        overridden = tuple([name for name in self._defaults if name in feeds])
        with self._lock:
            is_general = overridden not in self._variants and self._specific >= _CAPACITY
            key = self._defaults if is_general else overridden
            is_known = key in self._variants
            variant = self._variants.setdefault(key, None)
        if not is_known:
            if self._wait:
                self._add(key)
            else:
                background_threads.start("sardonyx-compile", self._add, key)
            variant = self._variants.get(key)
        if variant is None:
            return None
        return variant.run(output_names, {**self._default_values(), **feeds} if is_general else feeds, context)

    @property
    def _specific(self) -> int:
        """Number of variants in which a default is constant."""
        return len(self._variants.keys() - {self._defaults})

    def programs(self) -> list[tuple[str, Program, int]]:
        """Return the programs of all compiled variants; see :data:`.memory.Programs`."""
        with self._lock:
            compiled = [(names, variant) for names, variant in self._variants.items() if variant is not None]
        return [
            (f"with {', '.join(names)} fed", program, held)
            for names, variant in compiled
            for _, program, held in variant.programs()
        ]

    def release(self) -> None:
        """Forget all variants; later calls compile them again."""
        with self._lock:
            self._variants.clear()

    def _add(self, names: tuple[str, ...]) -> None:
        variant = self._compile(names)
        with self._lock:
            if names in self._variants:
                self._variants[names] = variant


def without_defaults(model: ir.Model, names: Sequence[str]) -> ir.Model:
    """Return a copy of a model in which these inputs have no default value."""
    from sardonyx.model.copying import copy_model

    copy = copy_model(model)
    for name in names:
        copy.graph.initializers.pop(name).const_value = None
    return copy


def default_values(model: ir.Model) -> dict[str, Any]:
    """Return the default values of a model's inputs, by name."""
    return {
        str(value.name): value.const_value.numpy()
        for value in model.graph.inputs
        if value.is_initializer() and value.const_value is not None
    }
