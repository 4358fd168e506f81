"""Shape inference of models: operators traced on types (:mod:`sardonyx.ops.inference`).

Inferred types and shapes are written onto the values of the ``onnx_ir`` model in place, sizes as numbers or as the text
of expressions. ``infer_node`` annotates one new node, and ``refine`` continues as rewriting makes more sizes known.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from sardonyx import model as model_io
from sardonyx.core.dim import Dim, Size, dim_min, product
from sardonyx.core.dim import symbols as algebra_symbols
from sardonyx.core.ir.graph import DEFINED
from sardonyx.core.ir.types import MapType, OptionalType, SequenceType, TensorType, Type
from sardonyx.errors import InvalidModelError, SardonyxError, ShapeError, SizeLimitError, UnsupportedError
from sardonyx.model import types as model_types
from sardonyx.ops import inference as operator_inference
from sardonyx.ops.file_facts import Known, initializer_facts, symbolic_type
from sardonyx.ops.inference import MAX_SIZE, UNNAMED
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.sizes import Sizes, at_least, equal, inferred_size, parsed
from sardonyx.rewrite.analysis.structure import is_evidently_sound, require_structure

FAR = 1 << 30
"""Smallest slice end that stands for the end of the axis."""

BROADCASTING = frozenset(
    {
        "Add", "Sub", "Mul", "Div", "Pow", "Mod", "And", "Or", "Xor", "Equal", "Less", "Greater", "LessOrEqual",
        "GreaterOrEqual", "Where", "PRelu", "Max", "Min", "Sum", "Mean", "BitwiseAnd", "BitwiseOr", "BitwiseXor",
        "BitShift",
    }
)  # fmt: skip
"""Elementwise operators whose output shape is the broadcast of the input shapes."""

ELEMENTWISE = frozenset(
    {
        "Relu", "Sigmoid", "Tanh", "Exp", "Log", "Sqrt", "Neg", "Abs", "Erf", "Cast", "Identity", "Clip", "LeakyRelu",
        "Elu", "Selu", "HardSigmoid", "HardSwish", "Softplus", "Softmax", "LogSoftmax", "Reciprocal", "Floor", "Ceil",
        "Round", "Sign", "Not", "Dropout", "LayerNormalization", "BatchNormalization", "InstanceNormalization", "Gelu",
    }
)  # fmt: skip
"""Operators whose output has the shape of their first input."""

InputShapes = Mapping[str, Sequence[int | str | None]]


def infer_shapes(
    model: ir.Model,
    *,
    input_shapes: InputShapes | None = None,
    strict: bool = True,
) -> dict[ir.Node, SardonyxError]:
    """Annotate every value of ``model`` (bodies too) with its type and shape, in place.

    A size that no operator rule determines gets a generated name (``?1``, ``?2``, …), so that equal unknown
    sizes of two tensors compare equal; generated names are never written to files.

    Args:
        model: The model to annotate.
        input_shapes: Shapes to give to graph inputs first: int, dimension name, or None for unknown.
        strict: Raise on contradictions. Otherwise inferred shapes overwrite wrong declarations of the file, and the
            results of a node that cannot run stay unknown.

    Returns:
        The nodes that cannot run on inputs of these types and sizes, with the reason.

    Raises:
        ShapeError: a name in ``input_shapes`` is not an input, or the rank differs from the declared one; if
            ``strict``, also if a declared shape contradicts the inferred one: names both.
        SardonyxError: if ``strict``, a node cannot run on inputs of these types and sizes.
        InvalidModelError: the model has a cycle, an undefined value, a recursive function, or no operator sets.
    """
    if input_shapes:
        override_input_shapes(model, input_shapes)
    if not model.graph.opset_imports:
        raise InvalidModelError(
            "expected an operator set import, got none: types cannot be inferred.",
            where=model.graph.name or "the model",
            remedy="Run `sardonyx check`, which lists the faults of the model.",
        )
    if not is_evidently_sound(model):
        require_structure(model_io.to_proto(model, weights=False))
    inferred = operator_inference.infer(model)
    if strict:
        inferred.require_consistency(model.graph)
    annotate(inferred)
    refine(model, Sizes(model.graph.opset_imports.get("", 1)))
    return {node: error for node, error in inferred.refusals.items() if not isinstance(error, UnsupportedError)}


def refine(model: ir.Model, sizes: Sizes, changed: Iterable[ir.Value] = ()) -> list[ir.Value]:
    """Derive sizes left open by operator inference from shape arithmetic, propagate them, name the rest.

    One pass in topological order: a node is inferred again only if the pass has refined one of its inputs.

    Args:
        model: A model annotated by ``infer_shapes``.
        sizes: Value propagation.
        changed: Values whose type, shape or constant became known after the last inference.

    Returns:
        The values with a refined shape.
    """
    refined: dict[ir.Value, None] = {}
    dirty: set[ir.Value] = set(changed)
    imports = {("" if d == "ai.onnx" else d): v for d, v in model.graph.opset_imports.items()}
    complete: dict[int, ir.Shape] = {}
    for node in facts.nodes_of(model.graph):
        outputs = []
        for value in node.outputs:
            shape = value.shape
            if id(shape) in complete:
                continue
            if shape is not None and is_fully_known(shape):
                complete[id(shape)] = shape
            elif value.name and _is_tensor(value):
                outputs.append(value)
        if not outputs:
            continue
        before = [v.shape for v in outputs]
        renewed = any(v in dirty for v in node.inputs)
        for output in outputs:
            dims = _computed(node, sizes, output.shape)
            if dims is None and renewed:
                # Operator inference covers the sizes that shape arithmetic cannot derive; one run serves all outputs.
                infer_node(node, imports, model.ir_version)
                renewed = False
            dims = dims or _named(node, output)
            if dims is not None and (output.shape is None or dims != [_plain(dim) for dim in output.shape]):
                output.shape = _shape(tuple(dims))
        updated = [v for v, shape in zip(outputs, before, strict=True) if v.shape is not shape]
        refined.update(dict.fromkeys(updated))
        dirty.update(updated)
    return list(refined)


def _named(node: ir.Node, output: ir.Value) -> list[int | str | None] | None:
    """Return the shape with a name for each open size; None while a shape of an input is unknown."""
    shape = output.shape
    if shape is None or any(v is not None and v.shape is None for v in node.inputs):
        return None
    return [
        f"?{output.name}.{axis}" if not isinstance(dim, int) and dim.value is None else _plain(dim)
        for axis, dim in enumerate(shape)
    ]


def _computed(node: ir.Node, sizes: Sizes, shape: ir.Shape | None) -> list[int | str | None] | None:
    computed = output_sizes(node, sizes)
    if computed is None or (shape is not None and len(computed) != len(shape)):
        return None
    return [size if isinstance(size, int) else str(size) for size in computed]


def _plain(dim: int | ir.SymbolicDim) -> int | str | None:
    return dim if isinstance(dim, int) else dim.value


def _is_tensor(value: ir.Value) -> bool:
    return value.type is None or isinstance(value.type, ir.TensorType)


def is_fully_known(shape: ir.Shape | None) -> bool:
    """Return True if every size is a number or a name declared by the file."""
    return shape is not None and all(map(_is_known, shape))


def _is_known(dim: int | ir.SymbolicDim) -> bool:
    return isinstance(dim, int) or (dim.value is not None and not dim.value.startswith(UNNAMED))


def output_sizes(node: ir.Node, sizes: Sizes) -> tuple[Size, ...] | None:
    """Return the output shape that follows from the input shapes and integer operands alone, else None."""
    if node.domain not in ("", "ai.onnx"):
        return None
    try:
        result = _spelled_out(node, sizes)
    except SizeLimitError:
        return None  # The shape of operator inference, with shorter names, stays.
    return None if result is not None and any(isinstance(x, int) and x > MAX_SIZE for x in result) else result


def _spelled_out(node: ir.Node, sizes: Sizes) -> tuple[Size, ...] | None:
    match node.op_type:
        case "Reshape":
            return _reshaped(node, sizes)
        case "ConstantOfShape":
            elements = sizes.elements(node.inputs[0])
            return None if elements is None else elements[1]
        case "Expand":
            dims, elements = sizes.dims(node.inputs[0]), sizes.elements(node.inputs[1])
            return None if dims is None or elements is None else _broadcast(dims, elements[1])
        case "Range":
            bounds = [sizes.elements(v) for v in node.inputs]
            if len(bounds) != 3 or any(b is None or len(b[1]) != 1 for b in bounds):
                return None
            start, limit, step = (b[1][0] for b in bounds if b is not None)
            return (limit - start,) if step == 1 and at_least(limit, start) is True else None
        case "Tile":
            dims, elements = sizes.dims(node.inputs[0]), sizes.elements(node.inputs[1])
            if dims is None or elements is None or len(dims) != len(elements[1]):
                return None
            return tuple(d * r for d, r in zip(dims, elements[1], strict=True))
        case "Slice" if sizes.opset >= 10:
            return _sliced(node, sizes)
        case op if op in ELEMENTWISE and len(node.outputs) == 1:
            return sizes.dims(node.inputs[0])
        case op if op in BROADCASTING:
            parts = [sizes.dims(v) for v in node.inputs]
            out: tuple[Size, ...] | None = ()
            for part in parts:
                out = None if out is None or part is None else _broadcast(out, part)
            return out
        case "Resize" if len(node.inputs) > 3:
            elements = sizes.elements(node.inputs[3])
            rank = facts.rank(node.inputs[0]) or 0
            return elements[1] if elements is not None and len(elements[1]) == rank else None
        case _:
            return None


def _reshaped(node: ir.Node, sizes: Sizes) -> tuple[Size, ...] | None:
    if len(node.inputs) < 2:
        return None
    dims, elements = sizes.dims(node.inputs[0]), sizes.elements(node.inputs[1])
    if elements is None:
        return None
    target: list[Size] = []
    for axis, size in enumerate(elements[1]):
        if size == 0 and not sizes.attr(node, "allowzero", 0):
            if dims is None or axis >= len(dims):
                return None
            size = dims[axis]
        target.append(size)
    if -1 in target:
        if dims is None:
            return None
        total, rest = product(dims), product([size for size in target if size != -1])
        inferred = inferred_size(total, rest)
        if inferred is None:
            return None
        target[target.index(-1)] = inferred
    return tuple(target)


def _broadcast(a: tuple[Size, ...], b: tuple[Size, ...]) -> tuple[Size, ...] | None:
    length = max(len(a), len(b))
    left, right = (1,) * (length - len(a)) + a, (1,) * (length - len(b)) + b
    out: list[Size] = []
    for x, y in zip(left, right, strict=True):
        if x == 1:
            out.append(y)
        elif y == 1 or equal(x, y) is True or isinstance(x, int):
            out.append(x)
        elif isinstance(y, int) or _covers(y, x):
            out.append(y)
        elif _covers(x, y):
            out.append(x)
        else:
            return None
    return tuple(out)


def _covers(larger: Size, smaller: Size) -> bool:
    """Return True if two sizes, if they broadcast, certainly give the larger; 0 and 1 give 0."""
    # Given x <= y, either x == y or x is 1: no other pair broadcasts but 0 and 1.
    return at_least(larger, smaller) is True and (at_least(larger, 2) is True or at_least(smaller, 1) is True)


def _sliced(node: ir.Node, sizes: Sizes) -> tuple[Size, ...] | None:
    """Return the shape of a Slice with steps of 1 and constant starts."""
    dims, starts, ends = sizes.dims(node.inputs[0]), sizes.constant(node.inputs[1]), sizes.elements(node.inputs[2])
    if dims is None or starts is None or ends is None:
        return None
    axes: tuple[int, ...] | None = tuple(range(len(starts)))
    if len(node.inputs) > 3 and node.inputs[3] is not None:
        axes = sizes.constant(node.inputs[3])
    steps = (
        sizes.constant(node.inputs[4]) if len(node.inputs) > 4 and node.inputs[4] is not None else (1,) * len(starts)
    )
    if axes is None or steps is None or any(step != 1 for step in steps):
        return None
    if not len(axes) == len(starts) == len(ends[1]) or not all(-len(dims) <= axis < len(dims) for axis in axes):
        return None  # No run of the node succeeds.
    out = list(dims)
    for axis, start, end in zip(axes, starts, ends[1], strict=True):
        size = out[axis]
        if isinstance(end, int) and end < 0:
            end = size + end
        if start < 0 or at_least(end, start) is not True or (start > 0 and at_least(size, start) is not True):
            return None
        end = size if isinstance(end, int) and end >= FAR else dim_min(end, size)
        out[axis] = end - start
    return tuple(out)


def forget_generated_names(model: ir.Model) -> None:
    """Clear sizes with only a generated name, except names declared by graph inputs.

    A generated name means nothing to a reader of the file and differs between runs.
    """
    declared = {
        symbol
        for value in model.graph.inputs
        for dim in value.shape or ()
        if not isinstance(dim, int) and dim.value
        for symbol in algebra_symbols(parsed(dim.value))
    }
    outputs = set(model.graph.outputs)
    # Most values of equal shape share one object.
    unchanged: dict[int, ir.Shape] = {}
    for graph in (model.graph, *(f.graph for f in model.functions.values())):
        nodes = facts.nodes_of(graph)
        values = [value for node in nodes for value in node.outputs]
        values += [v for node in nodes if facts.may_hold_bodies(node) for b in facts.bodies(node) for v in b.inputs]
        for value in values:
            shape = value.shape
            if shape is None or id(shape) in unchanged or value in outputs:
                continue
            plain = _without_generated(shape, declared)
            if plain is shape:
                unchanged[id(shape)] = shape
            else:
                value.shape = plain


def _without_generated(shape: ir.Shape, declared: set[str]) -> ir.Shape:
    dims = [_plain(dim) for dim in shape]
    cleared = [dim if not isinstance(dim, str) or not _is_generated(dim, declared) else None for dim in dims]
    return shape if cleared == dims else ir.Shape(cleared)


def _is_generated(name: str, declared: set[str]) -> bool:
    # Names of the file do not contain a mark of generated names: most names need no parsing.
    if not any(mark in name for mark in UNNAMED):
        return False
    return any(s.startswith(UNNAMED) and s not in declared for s in algebra_symbols(parsed(name)))


def override_input_shapes(model: ir.Model, input_shapes: InputShapes) -> None:
    """Give graph inputs new shapes, and clear every inferred shape that may depend on the old ones."""
    inputs = {value.name: value for value in model.graph.inputs}
    for name, dims in input_shapes.items():
        value = inputs.get(name)
        if value is None:
            raise ShapeError("unknown graph input", where=name, remedy=f"Inputs are: {', '.join(map(str, inputs))}.")
        if value.shape is not None and len(value.shape) != len(dims):
            raise ShapeError(f"expected {len(value.shape)} dimensions, got {len(dims)}", where=name)
        value.shape = ir.Shape(list(dims))
    for node in model.graph.all_nodes():
        for output in node.outputs:
            if output.shape is not None and not output.is_graph_output():
                output.shape = None


def annotate(inferred: operator_inference.Inference) -> None:
    """Write inferred types onto the values; a run-time size is named after its first occurrence."""
    names: dict[str, Size] = {}
    shapes: dict[tuple[Size, ...], ir.Shape] = {}
    for value in inferred.known:
        kind = inferred.type(value)
        # Inputs and initializers keep their declared types; body inputs often have no declared type.
        if kind is not None and (value.producer() is not None or value.type is None):
            _annotate_value(value, kind, names, shapes)


def _annotate_value(
    value: ir.Value, kind: Type, names: dict[str, Size], shapes: dict[tuple[Size, ...], ir.Shape]
) -> None:
    is_checked = value.is_graph_output()  # Sessions check the types of results, and the full checker requires them.
    if value.type is None or (isinstance(kind, TensorType) and value.dtype != kind.dtype and not is_checked):
        value.type = ir_type(kind)
    if not isinstance(kind, TensorType):
        return
    if kind.shape is None:
        value.shape = value.shape if is_checked else None
        return
    shape = shapes.get(kind.shape)
    if shape is None:
        shape = shapes[kind.shape] = _shape(
            tuple(
                [
                    size if isinstance(size, int) else _named_size(size, value, axis, names)
                    for axis, size in enumerate(kind.shape)
                ]
            )
        )
    if value.shape is None or value.shape != shape:
        value.shape = shape


def _named_size(size: Dim, value: ir.Value, axis: int, names: dict[str, Size]) -> int | str:
    unnamed = [symbol for symbol in size.symbols() if symbol.startswith(DEFINED)]
    if not unnamed:
        return str(size)
    for symbol in unnamed:
        if symbol not in names:
            names[symbol] = Dim.symbol(f"?{value.name}.{axis}" + f".{symbol[1:]}" * (len(unnamed) > 1))
    try:
        return str(size.substitute(names))
    except SizeLimitError:
        # Value names are longer than symbols, so the expression may exceed the limit: one name replaces it everywhere.
        return str(names.setdefault(str(size), Dim.symbol(f"?{value.name}.{axis}.whole")))


def ir_type(kind: Type) -> ir.TypeProtocol:
    """Return a Core type as an ``onnx_ir`` type, which does not include the shape."""
    match kind:
        case TensorType():
            return ir.TensorType(kind.dtype)
        case SequenceType():
            return ir.SequenceType(ir_type(kind.element))
        case OptionalType():
            return ir.OptionalType(ir_type(kind.element))
        case MapType():
            return model_types.MapType(kind.key, ir_type(kind.value))
    raise AssertionError(f"internal: {kind} is not the type of a model value")


@functools.lru_cache(maxsize=4096)
def _shape(dims: tuple[int | str | None, ...]) -> ir.Shape:
    """Return the shape, one object per distinct shape: models have many values and few shapes."""
    return ir.Shape(dims, frozen=True)


def infer_node(node: ir.Node, opset_imports: Mapping[str, int], ir_version: int) -> None:
    """Annotate the outputs of one new node from its inputs' types, as far as they can be inferred."""
    names: dict[str, Size] = {}
    for output, kind in zip(node.outputs, _types(node, opset_imports), strict=False):
        if output.name and kind is not None:
            _annotate_value(output, kind, names, {})


def inferred_dims(node: ir.Node, sizes: Sizes, opset_imports: Mapping[str, int]) -> tuple[Size, ...] | None:
    """Return the shape of the first output that follows from the operands alone, without the file's declaration.

    Declarations complete the sizes that depend on data, and exporters write those of one example.
    """
    computed = output_sizes(node, sizes)
    if computed is not None:
        return computed
    kind = next(iter(_types(node, opset_imports)), None)
    return kind.shape if isinstance(kind, TensorType) else None


def _types(node: ir.Node, opset_imports: Mapping[str, int]) -> Sequence[Type | None]:
    """Return the types of the outputs of a node without bodies; none if it cannot run."""
    if any(True for _ in facts.bodies(node)):
        return ()
    imports = {("" if domain == "ai.onnx" else domain): version for domain, version in opset_imports.items()}
    try:
        return operator_inference.infer_node(node, imports, _known)
    except SardonyxError:
        return ()  # The graph may be under construction; a check of the finished model reports the fault.


def _known(value: ir.Value) -> Known:
    # A constant of a graph under construction belongs to no graph yet.
    is_constant = value.is_initializer() or (value.producer() is None and not value.is_graph_input())
    if value.const_value is not None and is_constant:
        return initializer_facts(value)
    return symbolic_type(value)
