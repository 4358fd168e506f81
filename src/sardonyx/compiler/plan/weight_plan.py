"""Weight plans: the constants of a program as views of a model's weights, for repeated replacement.

Replacing weights by :mod:`.reweight` compares two functions. If each constant that differs is a view of one weight, or
was computed from such views by a pass, the same constants depend on later weights alike: they are computed again, and
the form that kernels read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sardonyx.base.cancellation import raise_if_cancelled
from sardonyx.compiler.analysis.constant_values import (
    computed_constant,
    is_closed,
    leaves_of,
    over_leaves,
    source_of,
)
from sardonyx.compiler.analysis.magnitudes import magnitude_class, quantizes
from sardonyx.compiler.analysis.primitive_traits import is_splat
from sardonyx.compiler.analysis.strided_views import MOVEMENTS
from sardonyx.compiler.executor.thread_pool import Pool
from sardonyx.compiler.lower.launch import Prepared
from sardonyx.compiler.plan.compiled_function import CompiledFunction
from sardonyx.compiler.plan.packing import Packing, TransformedPacking
from sardonyx.compiler.plan.reweight import Substitution, changed_constants, elements, is_weight
from sardonyx.compiler.target.alignment import aligned
from sardonyx.compiler.target.denormals import holds_denormals
from sardonyx.compiler.target.description import Target
from sardonyx.core.eval.tensor import constant
from sardonyx.core.ir.graph import Value, function
from sardonyx.core.ir.types import TensorType


@dataclass(frozen=True)
class Origin:
    """A view of a weight.

    Attributes:
        weight: Index of the weight.
        offset: Offset of the first element in the weight, in bytes.
        strides: For each axis, the bytes between neighbours.
    """

    weight: int
    offset: int
    strides: tuple[int, ...]

    @classmethod
    def of(cls, array: np.ndarray, weights: Sequence[np.ndarray]) -> Origin | None:
        """Return the origin of an array that is a view of a weight; None if the array is another memory."""
        start, end = np.lib.array_utils.byte_bounds(array)
        for i, weight in enumerate(weights):
            first = weight.ctypes.data
            if first <= start and end <= first + weight.nbytes and array.dtype == weight.dtype:
                return cls(i, array.ctypes.data - first, array.strides)
        return None

    def view(self, weight: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Return the view of a weight, which is contiguous."""
        return np.ndarray(shape, weight.dtype, weight, self.offset, self.strides)


Leaves = tuple[Origin | None, ...]
"""The origin of each constant from which a constant was computed; None for constants that are of no weight."""


class WeightPlan:
    """Replacement of weights of a compiled function.

    Args:
        origins: The origin of each constant that may change.
        readers: Prepared constants by the constants that may change and that they depend on.
        changed: See the attribute.
        classes: The magnitude classes of constants on which code may depend.
        computed: The origins of the constants from which a pass computed a constant; see :func:`.computed_constant`.

    Attributes:
        weights: Indices of the weights that may change.
        changed: Indices of the weights of which constants differ between the two functions of :meth:`of`.
    """

    def __init__(
        self,
        origins: Mapping[Value, Origin],
        readers: Mapping[Any, Sequence[Value]],
        changed: frozenset[int],
        classes: Mapping[Value, float | None],
        computed: Mapping[Value, Leaves],
    ) -> None:
        self._origins, self._readers, self._classes, self._computed = origins, readers, classes, computed
        self._packings: dict[Any, Packing | TransformedPacking | None] = {}
        leaves = (leaf for several in computed.values() for leaf in several if leaf is not None)
        self.weights = frozenset(origin.weight for origin in (*origins.values(), *leaves))
        self.changed = changed

    @classmethod
    def of(
        cls, compiled: CompiledFunction, before: CompiledFunction, weights: Sequence[np.ndarray]
    ) -> WeightPlan | None:
        """Return the plan for weights that differ between two functions of the same code.

        The result is None if a constant that differs is neither a view of a weight that may change nor computed from
        such views (:func:`.computed_constant`). Constants of equal
        elements are part of the plan too: later weights may change these.

        Args:
            compiled: A function with other weights than ``before``.
            before: The function whose code ``compiled`` reuses.
            weights: The weights of ``compiled``, contiguous.
        """
        changed = changed_constants(compiled.substitution, before.substitution)
        if changed is None:
            return None
        origins, fixed = dict[Value, Origin](), _overlapping(weights)
        computed = dict[Value, Leaves]()
        for value, now in compiled.substitution.items():
            if not value.is_constant or not isinstance(value.type, TensorType):
                continue
            # Code may depend on the elements of other constants.
            may_change = is_weight(value) and not is_splat(value) and value not in compiled.function.results
            leaves = _leaves(now, weights)
            if leaves is not None:
                if may_change:
                    computed[value] = leaves
                else:
                    fixed.update(leaf.weight for leaf in leaves if leaf is not None)
                continue
            origin = Origin.of(np.asarray(now.known), weights)
            if origin is None:
                if value in changed:
                    return None
            elif may_change:
                origins[value] = origin
            else:
                fixed.add(origin.weight)
        origins = {value: origin for value, origin in origins.items() if origin.weight not in fixed}
        computed = {
            value: leaves
            for value, leaves in computed.items()
            if not any(leaf is not None and leaf.weight in fixed for leaf in leaves)
        }
        if not changed <= origins.keys() | computed.keys():
            return None
        readers: dict[Any, Sequence[Value]] = {}
        for key in compiled.prepared:
            if isinstance(key, Value):
                read = [key] if key in origins or key in computed else []
            elif is_closed(key.source):
                read = [value for value in leaves_of(key.source) if value in origins or value in computed]
            else:
                return None
            if read:
                readers[key] = read
        current = {value: compiled.substitution.get(value, value) for value in (*origins, *computed)}
        limited = quantizes(compiled.substitution)
        classes = {value: magnitude_class(now) for value, now in current.items()} if limited else {}
        of_changed = [origins[value] for value in changed if value in origins]
        of_changed += [leaf for value in changed for leaf in computed.get(value, ()) if leaf is not None]
        return cls(origins, readers, frozenset(origin.weight for origin in of_changed), classes, computed)

    def apply(
        self, compiled: CompiledFunction, weights: Mapping[int, np.ndarray], pool: Pool
    ) -> CompiledFunction | None:
        """Return the function over other weights; None if the code depends on these.

        Args:
            compiled: The function, with any weights.
            weights: The weights that change by index, contiguous.
            pool: The threads that pack.
        """
        constants: dict[Value, Value] = {}
        for value, origin in self._origins.items():
            weight = weights.get(origin.weight)
            if weight is None:
                continue
            constants[value] = _constant_of(value, origin, weight)
        for value, origins in self._computed.items():
            if any(origin is not None and origin.weight in weights for origin in origins):
                constants[value] = _recomputed(compiled.substitution.get(value, value), origins, weights)
        for value, now in constants.items():
            if is_splat(now) or (value in self._classes and magnitude_class(now) != self._classes[value]):
                return None
        substitution: Substitution = {
            **{value: now for value, now in compiled.substitution.items() if value.is_constant},
            **constants,
        }
        prepared = dict(compiled.prepared)
        renewed = []
        denormal = np.zeros(1, np.int32)
        for key, read in self._readers.items():
            if constants.keys().isdisjoint(read):
                continue
            raise_if_cancelled()
            if key not in self._packings:
                self._packings[key] = _packing(key, read, substitution, compiled.target)
            packing = self._packings[key]
            if packing is None:
                prepared[key] = _prepared(key, substitution)
                renewed.append(prepared[key])
                continue
            known = np.asarray(substitution[read[0]].known)
            source = np.ascontiguousarray(known.transpose(packing.order) if isinstance(packing, Packing) else known)
            prepared[key] = packing.packed(source, compiled.target, pool, denormal)
        has_denormals = bool(denormal[0]) or holds_denormals(prepared.values() if compiled.has_denormals else renewed)
        return replace(compiled, substitution=substitution, prepared=prepared, has_denormals=has_denormals)


def _leaves(constant: Value, weights: Sequence[np.ndarray]) -> Leaves | None:
    """Return the origins of the constants that a constant was computed from, if one of them is a view of a weight."""
    source = source_of(constant)
    if source is None:
        return None
    origins = tuple(Origin.of(np.asarray(leaf.known), weights) for leaf in leaves_of(source))
    return origins if any(origin is not None for origin in origins) else None


def _recomputed(constant: Value, origins: Leaves, weights: Mapping[int, np.ndarray]) -> Value:
    """Return a computed constant over other weights."""
    source = source_of(constant)
    assert source is not None
    leaves = {
        leaf: _constant_of(leaf, origin, weights[origin.weight])
        for leaf, origin in zip(leaves_of(source), origins, strict=True)
        if origin is not None and origin.weight in weights
    }
    return computed_constant(over_leaves(source, leaves))


def _constant_of(value: Value, origin: Origin, weight: np.ndarray) -> Value:
    # No other constant is this one: equal constants need not be found.
    return Value("constant", (), {"value": origin.view(weight, value.known.shape)}, value.type)


def _overlapping(weights: Sequence[np.ndarray]) -> set[int]:
    """Return the weights that share memory: a view of one may be meant as a view of another."""
    spans = sorted((weight.ctypes.data, weight.ctypes.data + weight.nbytes, i) for i, weight in enumerate(weights))
    overlapping, last, owner = set[int](), 0, -1
    for start, end, i in spans:
        if start < last and start < end:
            overlapping |= {owner, i}
        if end > last:
            last, owner = end, i
    return overlapping


def _packing(
    key: Any, read: Sequence[Value], substitution: Substitution, target: Target
) -> Packing | TransformedPacking | None:
    """Return the packing of a prepared constant; None if it is more than one constant in another order."""
    if not isinstance(key, Prepared) or len(read) != 1 or not (key.moves or key.kernel is not None):
        return None
    (weight,) = read
    between = [value for value in function("closed", (), [key.source], 0).values if value is not weight]
    if key.kernel is not None and all(value.op == "reshape" for value in between) and weight.known.dtype == np.float32:
        return TransformedPacking(key.kernel, target)
    if not key.moves or any(value.op not in MOVEMENTS for value in between):
        return None
    # The order of memory of new weights, which rules may have transposed.
    known = np.asarray(substitution[weight].known)
    return Packing.of(lambda numbers: _prepared(key, {weight: constant(numbers)}), known, target)


def _prepared(key: Any, substitution: Substitution) -> np.ndarray:
    if isinstance(key, Value):
        return aligned(np.asarray(substitution[key].known))
    return aligned(key.make(lambda value: elements(value, substitution)))
