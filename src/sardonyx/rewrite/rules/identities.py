"""Operators without effect: the output is the input."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.engine.engine import Engine
from sardonyx.rewrite.language import EXACT, A, Match, Patch, Refusal, Result, Rewrite, V, guard, rule, where
from sardonyx.rewrite.notation import Cast, Dropout, Identity, Transpose
from sardonyx.rewrite.sweep import sweep


@rule("eliminate_identity", exactness=EXACT)
def identity(x: V) -> Rewrite:
    """Remove Identity; keep the node if a graph output needs a name of its own."""
    return Identity(x) >> x


@sweep("eliminate_identity_of_constant", exactness=EXACT, on=("Identity",))
def identity_of_constant(engine: Engine, graph: ir.Graph) -> Iterator[tuple[ir.Node, Result]]:
    """Store a constant that is an output of the model as an initializer of that name, instead of an Identity."""
    if engine.in_function or graph is not engine.model.graph:
        return
    for node in facts.nodes_of(graph):
        if node.graph is not graph or not facts.is_op(node, "Identity") or not node.outputs[0].is_graph_output():
            continue
        source, tensor = node.inputs[0], facts.constant_tensor(node.inputs[0])
        if source is None or tensor is None or source.producer() is not None or source.graph is not graph:
            continue
        is_shared = len(source.uses()) > 1 or source.is_graph_output()
        if is_shared and tensor.nbytes > engine.settings.growth:
            yield node, Refusal(f"a second copy of the constant would add {tensor.nbytes} bytes")
        else:
            yield node, Patch(build=functools.partial(_name_constant, engine, node, source, is_shared))


def _name_constant(engine: Engine, node: ir.Node, source: ir.Value, is_shared: bool) -> Patch:
    """Put an initializer in the place of an Identity of ``source``: ``source`` renamed, or a copy if it is shared."""
    old, graph = node.outputs[0], engine.model.graph
    name, old.name = str(old.name), engine.names.fresh(f"{old.name}_replaced")
    shape = old.shape if old.shape is not None else source.shape
    new = ir.Value(name=name, type=source.type, shape=shape, const_value=facts.constant_tensor(source))
    new.meta.update(old.meta)
    graph.register_initializer(new)
    for index, value in enumerate(graph.outputs):
        if value is old:
            graph.outputs[index] = new
    readers = [use.node for use in old.uses()]
    for use in tuple(old.uses()):
        use.node.replace_input_with(use.idx, new)
    if not is_shared:
        del graph.initializers[str(source.name)]
    return Patch(remove=[node], edit=lambda: readers)


def drops_nothing(m: Match) -> Refusal | None:
    """Guard: the Dropout is outside of training, or has the ratio 0, and its mask is unused."""
    s = m.site
    if not s.unused_outputs_from(1):
        return Refusal("the mask output is used")
    if s.opset < 7 and not s.attr("is_test", 0):
        return Refusal("the node is in training mode (is_test=0)")
    ratio, training = s.input(1), s.input(2)
    if training is None or facts.scalar(training) in (False, 0) or (ratio is not None and facts.scalar(ratio) == 0):
        return None
    return Refusal("neither training_mode is known to be false nor the ratio to be 0")


@rule("eliminate_nop_dropout", exactness=EXACT)
def dropout(x: V) -> Rewrite:
    """Remove Dropout outside of training, or with ratio 0, if the mask is unused."""
    return Dropout(x, ...) >> x | where(drops_nothing)


@rule("eliminate_nop_cast", exactness=EXACT)
def cast_to_same(x: V, to: A) -> Rewrite:
    """Remove a Cast to the type of the input."""
    return Cast(x, to=to) >> x | where(guard(lambda m: facts.dtype(m.x) == m.to, ""))


def _is_identity(m: Match) -> bool:
    return facts.rank(m.x) in (0, 1) if m.perm is None else list(m.perm) == sorted(m.perm)


@rule("eliminate_nop_transpose", exactness=EXACT)
def identity_permutation(x: V, perm: A) -> Rewrite:
    """Remove a Transpose with the identity permutation."""
    return Transpose(x, perm=perm) >> x | where(guard(_is_identity, ""))


@rule("fuse_consecutive_transposes", exactness=EXACT)
def transpose_transpose(x: V, inner: A, outer: A) -> Rewrite:
    """Fuse two Transposes into one by the composed permutation, or none."""

    def compose(m: Match) -> Result:
        n = facts.rank(m.x)
        if n is None:
            n = len(m.inner or m.outer or ())
            if n == 0:
                return Refusal("neither the rank nor a permutation is known")
        inner_perm = m.inner or tuple(reversed(range(n)))
        outer_perm = m.outer or tuple(reversed(range(n)))
        composed = [inner_perm[axis] for axis in outer_perm]
        return m.x if composed == sorted(composed) else Transpose(m.x, perm=composed)

    return Transpose(Transpose(x, perm=inner), perm=outer) >> compose
