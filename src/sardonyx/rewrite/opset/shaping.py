"""Data movement: Reshape, Split, Slice, Shape, Tile, Expand, Identity, Trilu, DepthToSpace, Col2Im."""

from __future__ import annotations

import itertools
import math

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite.opset.site import AttributeValue, Site, convert_attributes
from sardonyx.rewrite.opset.table import down, up

_END = np.iinfo(np.int64).max


def reshape_like(site: Site, x: ir.Value, like: ir.Value) -> ir.Value:
    """Reshape ``x`` to the shape of ``like``."""
    shape = site.static_shape(like)
    if shape is not None and 0 not in shape:
        return reshape(site, x, list(shape))
    return site.emit("Reshape", x, site.emit("Shape", like))


def reshape(site: Site, x: ir.Value, shape: list[int]) -> ir.Value:
    """Reshape ``x``: -1 follows from the rest, 0 copies a size."""
    if site.target < 5:
        return site.emit("Reshape", x, shape=shape)
    return site.emit("Reshape", x, site.constant(shape))


def unsqueeze(site: Site, x: ir.Value, axes: list[int]) -> ir.Value:
    """Insert axes of size one."""
    if site.target < 13:
        return site.emit("Unsqueeze", x, axes=axes)
    return site.emit("Unsqueeze", x, site.constant(axes))


def squeeze(site: Site, x: ir.Value, axes: list[int]) -> ir.Value:
    """Remove axes of size one."""
    if site.target < 13:
        return site.emit("Squeeze", x, axes=axes)
    return site.emit("Squeeze", x, site.constant(axes))


def reduce(site: Site, op_type: str, x: ir.Value, axes: list[int], *, keepdims: bool = True) -> ir.Value:
    """Reduce over some axes."""
    if site.target < (13 if op_type == "ReduceSum" else 18):
        return site.emit(op_type, x, axes=axes, keepdims=int(keepdims))
    return site.emit(op_type, x, site.constant(axes), keepdims=int(keepdims))


def slice_axis(site: Site, x: ir.Value, axis: int, start: int, end: int, step: int = 1) -> ir.Value:
    """Slice along one axis; a step other than 1 needs set 10."""
    if site.target < 10:
        return site.emit("Slice", x, axes=[axis], starts=[start], ends=[end])
    steps = site.constant([step]) if step != 1 else None
    inputs = [x, site.constant([start]), site.constant([end]), site.constant([axis]), steps]
    return site.emit("Slice", *(inputs if step != 1 else inputs[:4]))


@up("Reshape", version=5)
def shape_to_input(site: Site) -> None:
    """Turn the attribute ``shape`` into an input."""
    shape = site.integers("shape") or []
    site.become(inputs=[site.required(0), site.constant(shape)], attributes={})


@up("Reshape", version=14)
def zeros_of_a_shape(site: Site) -> None:
    """Let a result that :func:`reshape_like` gave the shape of another value have its sizes of 0."""
    x, shape = site.required(0).producer(), site.required(1).producer()
    if x is None or shape is None or shape.op_type != "Shape" or x.op_type not in ("Softmax", "LogSoftmax", "Hardmax"):
        return
    rows = None if x.inputs[0] is None else x.inputs[0].producer()
    if rows is not None and rows.op_type == "Flatten" and rows.inputs[0] is shape.inputs[0]:
        site.become(attributes=site.attributes(allowzero=1))


@down("Reshape", version=5)
def shape_to_attribute(site: Site) -> None:
    """Turn the input ``shape`` into an attribute."""
    site.become(inputs=[site.required(0)], attributes={"shape": site.constant_integers(1, "shape") or []})


@down("Reshape", version=14)
def without_allowzero(site: Site) -> None:
    """Drop ``allowzero`` if a zero size cannot occur or equals the input's size, else test at run time."""
    x, shape = site.required(0), site.required(1)
    sizes = site.known(shape)
    literal = (sizes is None and not _copies_agree(site)) or (sizes is not None and 0 in sizes)
    if not site.integer("allowzero") or not literal:
        site.become(attributes=site.attributes(drop=["allowzero"]))
        return
    kind = site.dtype(x)
    if kind == ir.DataType.STRING or kind in (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128):
        site.refuse(f"no operator before opset 14 gives an empty tensor of {kind.name.lower()} with these sizes")
    empty = ir.Tensor(np.zeros(1, kind.numpy()), dtype=kind)
    if sizes is not None:
        site.replace(site.emit("ConstantOfShape", shape, value=empty))
        return
    zero = site.emit("Equal", shape, site.constant([0]))
    any_zero = site.cast(reduce(site, "ReduceMax", site.cast(zero, ir.DataType.INT32), [0]), ir.DataType.BOOL)
    branches = {
        "then_branch": _branch(site, "ConstantOfShape", [shape], {"value": empty}),
        "else_branch": _branch(site, "Reshape", [x, shape], {}),
    }
    site.replace(site.emit("If", squeeze(site, any_zero, [0]), **branches))


def _copies_agree(site: Site) -> bool:
    """Return True if zeros in the new shape have the same meaning as copies of the input's sizes.

    So no size can be zero, or only one equal to the input's size at the same index. Sizes named by the graph's
    inputs are assumed to be at least one.
    """
    old, new = site.required(0).shape or (), site.node.outputs[0].shape
    if new is None:
        return False
    named = {str(dim) for value in site.scope.model.graph.inputs for dim in value.shape or () if dim is not None}
    for i, size in enumerate(new):
        doubtful = _factors(size) - named
        if "None" in doubtful or (doubtful and (i >= len(old) or not doubtful <= _factors(old[i]))):
            return False
    return True


def _factors(size: int | ir.SymbolicDim) -> set[str]:
    """Return the factors that may be zero in a product of names and numbers."""
    factors = {factor.strip() for factor in str(size).split("*")}
    return {factor for factor in factors if not factor.isdecimal() or int(factor) == 0}


def _branch(
    site: Site, op_type: str, inputs: list[ir.Value], attributes: dict[str, AttributeValue | ir.Attr]
) -> ir.Graph:
    """Build a body of one node over values of the enclosing scope."""
    node = ir.Node("", op_type, inputs, convert_attributes(attributes), name=site.scope.fresh(f"{op_type}_branch"))
    result = node.outputs[0]
    result.name = site.scope.fresh(f"{site.node.outputs[0].name}/{op_type}")
    result.type = site.node.outputs[0].type
    return ir.Graph([], [result], nodes=[node], name=node.name)


@up("Split", version=2)
def split_axis_written_out(site: Site) -> None:
    """Turn the sizes, an input of the data's type, into an attribute; write out the axis, 0 by default."""
    sizes = site.integers("split")
    if site.input(1) is not None:
        sizes = site.constant_integers(1, "split")
    attributes = site.attributes(axis=site.integer("axis"))
    site.become(inputs=[site.required(0)], attributes=attributes | ({"split": sizes} if sizes else {}))


@up("Split", version=13)
def split_to_input(site: Site) -> None:
    """Turn the attribute ``split`` into an input."""
    sizes = site.integers("split")
    inputs = [site.required(0), site.constant(sizes) if sizes is not None else None]
    site.become(inputs=inputs, attributes=site.attributes(drop=["split"]))


@down("Split", version=13)
def split_to_attribute(site: Site) -> None:
    """Turn the input ``split`` into an attribute."""
    sizes = site.constant_integers(1, "split")
    site.become(inputs=[site.required(0)], attributes=site.attributes() | ({"split": sizes} if sizes else {}))


@up("Split", version=18)
def split_count_written_out(site: Site) -> None:
    """Write out the number of outputs of an even split."""
    if site.input(1) is None:
        site.become(attributes=site.attributes(num_outputs=len(site.node.outputs)))


@down("Split", version=18)
def split_sizes_written_out(site: Site) -> None:
    """Write out the sizes of an uneven split into ``num_outputs`` parts."""
    if site.input(1) is not None:
        site.become(attributes=site.attributes(drop=["num_outputs"]))
        return
    x, count = site.required(0), len(site.node.outputs)
    axis = site.axis("axis", 0, site.rank(x))
    size = site.size(x, axis)
    part = -(-size // count)
    inputs = [x] if size % count == 0 else [x, site.constant([part] * (count - 1) + [size - part * (count - 1)])]
    site.become(inputs=inputs, attributes=site.attributes(drop=["num_outputs"]))


@up("Slice", version=10)
def slice_to_inputs(site: Site) -> None:
    """Turn starts, ends and axes into inputs."""
    starts, ends, axes = (site.integers(name) for name in ("starts", "ends", "axes"))
    bounds = [site.constant(starts or []), site.constant(ends or [])]
    tail = [site.constant(axes)] if axes is not None else []
    site.become(inputs=[site.required(0), *bounds, *tail], attributes={})


@down("Slice", version=10)
def slice_to_attributes(site: Site) -> None:
    """Turn constant starts, ends and axes into attributes, and axes with other steps than 1 into gathers."""
    x = site.required(0)
    starts = site.constant_integers(1, "starts") or []
    ends = site.constant_integers(2, "ends") or []
    axes = site.constant_integers(3, "axes")
    steps = site.constant_integers(4, "steps") or [1] * len(starts)
    if axes is None:
        axes = list(range(len(starts)))
    if min(axes, default=0) < 0:
        axes = [a + site.rank(x) if a < 0 else a for a in axes]
    value = x
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if step != 1:
            size = site.size(x, axis)
            chosen = range(size)[start : _python_end(end, step, size) : step]
            site.require_room(len(chosen))
            value = site.emit("Gather", value, site.constant(list(chosen)), axis=axis)
    plain = [i for i, step in enumerate(steps) if step == 1]
    if plain or value is x:
        plain_starts, plain_ends, plain_axes = ([bounds[i] for i in plain] for bounds in (starts, ends, axes))
        value = site.emit("Slice", value, starts=plain_starts, ends=plain_ends, axes=plain_axes)
    site.replace(value)


def _python_end(end: int, step: int, size: int) -> int | None:
    """Return the end of the equivalent Python slice; None makes a reversed slice include element 0."""
    return None if step < 0 and end < -size else end


@down("Shape", version=15)
def shape_then_slice(site: Site) -> None:
    """Slice a part of the shape out of the whole shape."""
    start, end = site.integer("start"), site.integer("end", _END)
    whole = site.emit("Shape", site.required(0))
    site.replace(whole if (start, end) == (0, _END) else slice_axis(site, whole, 0, start, end))


@up("Tile", version=6)
def tiles_to_repeats(site: Site) -> None:
    """Turn one count along one axis into a count for every axis."""
    x = site.required(0)
    repeats = [1] * site.rank(x)
    tiles = site.constant_integers(1, "tiles")
    if not tiles:
        site.refuse("expected the number of tiles, got an empty constant")
    repeats[site.constant_axis(2, len(repeats))] = tiles[0]
    site.become(inputs=[x, site.constant(repeats)])


@down("Tile", version=6)
def repeats_to_tiles(site: Site) -> None:
    """Turn counts for all axes into one Tile for each repeated axis."""
    value = site.required(0)
    dtype = site.dtype(value)
    for axis, count in enumerate(site.constant_integers(1, "repeats") or []):
        if count != 1:
            counts = [site.constant(np.asarray([number]), dtype) for number in (count, axis)]
            tiled = site.emit("Tile", value, *counts)
            if value.shape is not None:
                sizes = list(value.shape)
                tiled.shape = ir.Shape([*sizes[:axis], sizes[axis] * count, *sizes[axis + 1 :]])
            value = tiled
    site.replace(value)


@down("Expand", version=8)
def expand_by_arithmetic(site: Site) -> None:
    """Tile along each axis of size one; needs known sizes."""
    x = site.required(0)
    shape = site.constant_integers(1, "shape") or []
    old = [1] * (len(shape) - site.rank(x)) + list(site.sizes(x))
    goal = np.broadcast_shapes(tuple(old), (1,) * (len(old) - len(shape)) + tuple(shape))
    value = reshape(site, x, old) if len(old) > site.rank(x) else x
    repeats = [new // now if now else 1 for new, now in zip(goal, old, strict=True)]
    if 0 in repeats:
        site.refuse("its result has no elements")
    site.replace(site.emit("Tile", value, site.constant(repeats)))


@down("ConstantOfShape", version=9)
def expanded_constant(site: Site) -> None:
    """Expand the scalar to the shape."""
    value = site.node.attributes.get("value")
    fill = np.zeros(1, np.float32) if value is None else value.as_tensor().numpy().reshape(1)
    site.replace(site.emit("Expand", site.constant(fill), site.required(0)))


@down("Identity", version=14)
@down("Identity", version=16)
def identity_of_a_tensor(site: Site) -> None:
    """Replace identities of sequences and optionals by the original."""
    x = site.required(0)
    if isinstance(x.type, (ir.SequenceType, ir.OptionalType)) and not site.node.outputs[0].is_graph_output():
        site.replace(x)


@down("Trilu", version=14)
def triangle_by_mask(site: Site) -> None:
    """Write ``Trilu`` as ``Where(column - row >= k, x, 0)``, reading unknown sizes at run time."""
    x, upper = site.required(0), site.integer("upper", 1)
    rank = site.rank(x)
    diagonal = site.input(1) or site.constant(np.asarray(0, np.int64))
    rows, columns = (unsqueeze(site, _positions(site, x, rank - 2 + i), [1 - i]) for i in range(2))
    distance = site.emit("Sub", columns, rows)
    first = site.emit("Less", distance, diagonal) if upper else site.emit("Greater", distance, diagonal)
    site.replace(site.emit("Where", first, site.scalar(0, x), x))


def _positions(site: Site, x: ir.Value, axis: int) -> ir.Value:
    """Return the indices ``0 … size-1`` along one axis of ``x``."""
    shape = x.shape
    if shape is not None and isinstance(size := shape[axis], int):
        site.require_room(size)
        return site.constant(list(range(size)))
    zero, one = (site.constant(np.asarray(n, np.int64)) for n in (0, 1))
    length = site.emit("Gather", site.emit("Shape", x), site.constant(np.asarray(axis, np.int64)))
    return site.emit("Range", zero, length, one)


def _crd_channels(site: Site, depth: int, block: int) -> np.ndarray:
    """Return the ``CRD`` index of each channel in ``DCR`` order (block row, block column, depth)."""
    site.require_room(depth, block, block)
    return np.arange(depth * block**2).reshape(depth, block, block).transpose(1, 2, 0).reshape(-1)


@down("DepthToSpace", version=11)
def depth_to_space_in_dcr_order(site: Site) -> None:
    """Permute channels from ``CRD`` to ``DCR`` order before the operator."""
    x, block = site.required(0), site.integer("blocksize")
    if site.text("mode", "DCR") == "CRD":
        channels = site.constant(_crd_channels(site, site.size(x, 1) // block**2, block))
        x = site.emit("Gather", x, channels, axis=1)
    site.become(inputs=[x], attributes={"blocksize": block})


@down("SpaceToDepth", version=28)
def space_to_depth_in_dcr_order(site: Site) -> None:
    """Permute channels from ``DCR`` to ``CRD`` order after the operator."""
    x, block = site.required(0), site.integer("blocksize")
    if site.text("mode", "DCR") == "DCR":
        site.become(attributes={"blocksize": block})
        return
    channels = site.constant(np.argsort(_crd_channels(site, site.size(x, 1), block)))
    site.replace(site.emit("Gather", site.emit("SpaceToDepth", x, blocksize=block), channels, axis=1))


@down("Range", version=11)
def range_by_positions(site: Site) -> None:
    """Write ``Range`` as indices of a tensor of its length, times the step, plus the start."""
    if site.scope.is_foldable(site.node):
        site.refuse("constant range, left to constant folding")
    start, limit, delta = (site.required(i) for i in range(3))
    dtype, wide = site.dtype(start), ir.DataType.DOUBLE
    span = site.cast(site.emit("Sub", limit, start), wide)
    steps = site.emit("Ceil", site.emit("Div", span, site.cast(delta, wide)))
    length = site.cast(site.emit("Max", steps, site.constant(np.asarray(0.0))), ir.DataType.INT64)
    ones = site.emit("ConstantOfShape", reshape(site, length, [1]), value=ir.Tensor(np.ones(1, np.float32)))
    positions = site.cast(squeeze(site, site.emit("NonZero", ones), [0]), dtype)
    site.replace(site.emit("Add", site.emit("Mul", positions, delta), start))


@down("Range", version=27)
def range_in_float32(site: Site) -> None:
    """Compute half-precision ranges in float32 and round, as ``stash_type`` 1 requires."""
    dtype = site.dtype(site.required(0))
    if dtype not in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16):
        site.become(attributes={})
        return
    if site.integer("stash_type", 1) != 1:
        site.refuse(f"expected stash_type 1, got {site.integer('stash_type', 1)}")
    bounds = [site.cast(site.required(i), ir.DataType.FLOAT) for i in range(3)]
    site.replace(site.cast(site.emit("Range", *bounds), dtype))


@down("Col2Im", version=18)
def columns_summed_into_place(site: Site) -> None:
    """Scatter-add each column element to its position in the padded image, along one flat axis."""
    columns = site.required(0)
    image = site.constant_integers(1, "image_shape") or []
    block = site.constant_integers(2, "block_shape") or []
    axes = len(image)
    dilations, strides = (site.integers(name) or [1] * axes for name in ("dilations", "strides"))
    pads = site.integers("pads") or [0] * (2 * axes)
    padded = [n + pads[i] + pads[i + axes] for i, n in enumerate(image)]
    steps = [(padded[i] - dilations[i] * (block[i] - 1) - 1) // strides[i] + 1 for i in range(axes)]
    if min((*block, *steps), default=1) < 1:
        site.refuse(f"expected a block of at least one element within the padded image {padded}, got {block}")
    if math.prod(steps) != site.size(columns, 2):
        site.refuse(f"expected {math.prod(steps)} columns, got {site.size(columns, 2)}")
    images = max(site.size(columns, 0) * site.size(columns, 1) // math.prod(block), 1)
    site.require_room(images, max(math.prod(block) * math.prod(steps), math.prod(padded)))
    offsets = np.asarray(list(itertools.product(*map(range, block)))) * dilations
    starts = np.asarray(list(itertools.product(*map(range, steps)))) * strides
    positions = offsets[:, None, :] + starts[None, :, :]
    flat = np.ravel_multi_index(tuple(positions.transpose(2, 0, 1)), tuple(padded)).reshape(-1)
    batch, channels = site.size(columns, 0), site.size(columns, 1) // len(offsets)
    updates = reshape(site, columns, [batch, channels, len(flat)])
    index = site.constant(np.broadcast_to(flat, (batch, channels, len(flat))).astype(np.int64))
    canvas = np.zeros((batch, channels, int(np.prod(padded))), site.dtype(columns).numpy())
    summed = site.emit("ScatterElements", site.constant(canvas), index, updates, axis=2, reduction="add")
    value = reshape(site, summed, [batch, channels, *padded])
    for i, size in enumerate(image):
        if padded[i] != size:
            value = slice_axis(site, value, i + 2, pads[i], pads[i] + size)
    site.replace(value)
