"""The record of a compiled function: the contents of a program and of a program image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx.compiler.analysis.shape_guards import Equal
from sardonyx.compiler.llvm.elf_loader import Code, MappedCode
from sardonyx.compiler.llvm.object_code import LoadedCode
from sardonyx.compiler.lower.launch import Launch
from sardonyx.compiler.plan.segments import Step, depends_on_constants, launches_of
from sardonyx.compiler.target.denormals import Denormals
from sardonyx.compiler.target.description import Target
from sardonyx.core.ir.graph import Function, Value

if TYPE_CHECKING:
    from sardonyx.compiler.lower.context import FunctionContext
    from sardonyx.compiler.plan.reweight import Substitution


@dataclass(frozen=True, eq=False)
class KernelCode:
    """Kernels as machine code in memory.

    Attributes:
        code: The object code.
        names: The kernels' functions in the code, by the kernels' text.
        loaded: The code in memory.
        addresses: The addresses of the kernels' functions in memory, by the kernels' text.
    """

    code: Code
    names: Mapping[str, str]
    loaded: MappedCode | LoadedCode
    addresses: Mapping[str, int]

    @classmethod
    def of(cls, code: Code, names: Mapping[str, str], loaded: MappedCode | LoadedCode) -> KernelCode:
        """Return kernels of loaded code, with their addresses."""
        return cls(code, names, loaded, {text: loaded.address(name) for text, name in names.items()})


@dataclass(frozen=True, eq=False)
class CompiledFunction:
    """A compiled function.

    Attributes:
        function: Inputs and results, and all values in between unless ``whole`` is None.
        around: Size symbols of the enclosing function.
        steps: Segments of kernels, and interpreted values, in order.
        blocks: Channels per block, of values in blocked layout.
        host: Interpreted values, each with the reason.
        reads: For each value of ``host``, the values in memory to read.
        inner: All interpreted values: ``host`` and intermediate values.
        guards: Sizes that must be equal in a call.
        bodies: Compiled bodies of interpreted control flow.
        kernels: The machine code.
        prepared: Constants in the form that kernels read.
        target: The processor of the code.
        threads: Number of threads that share the work.
        denormals: The treatment of denormal numbers, as an option.
        has_denormals: True if prepared constants contain denormal numbers.
        whole: Groups and layouts; None in a function that was read from an image.
        substitution: For values of a function with replaced weights, the values of the new function.
        overrides: Fingerprint of the user's schedules that were active during compilation; None if these changed
            meanwhile, or for a function from an image.
    """

    function: Function
    around: frozenset[str]
    steps: Sequence[Step]
    blocks: Mapping[Value, int]
    host: Mapping[Value, str]
    reads: Mapping[Value, Sequence[Value]]
    inner: frozenset[Value]
    guards: Sequence[Equal]
    bodies: Mapping[Value, Sequence[CompiledFunction]]
    kernels: KernelCode
    prepared: Mapping[Any, np.ndarray]
    target: Target
    threads: int
    denormals: Denormals
    has_denormals: bool
    whole: FunctionContext | None = None
    substitution: Substitution = field(default_factory=dict)
    overrides: str | None = None

    @property
    def launches(self) -> list[Launch]:
        """The launches, in the order of execution."""
        return launches_of(self.steps)

    @property
    def can_be_reweighted(self) -> bool:
        """True if, as far as the form shows, only prepared constants depend on the elements of weights."""
        return self.whole is not None and not (self.host or self.bodies or any(map(depends_on_constants, self.steps)))
