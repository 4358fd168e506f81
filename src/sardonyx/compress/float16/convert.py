"""Conversion of a float32 model to 16-bit floats, except operators that require float32."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import onnx_ir as ir

from sardonyx import model as model_io
from sardonyx.compress.float16.casts import Applier
from sardonyx.compress.float16.clamp import Clamp, ClippedTensor, normal_range
from sardonyx.compress.float16.inference import TypedModel
from sardonyx.compress.float16.plan import Plan, PlanBuilder, Request
from sardonyx.compress.float16.regions import (
    keep_batch_rotations,
    keep_float32_movement,
    keep_quantized_regions,
    keep_sizes,
)
from sardonyx.compress.float16.rounding import Rounder
from sardonyx.errors import OptionError, UnsupportedError
from sardonyx.model import Loadable

DEFAULT_OP_BLOCK_LIST: tuple[str, ...] = (
    "BlackmanWindow",
    "EyeLike",
    "HammingWindow",
    "HannWindow",
    "MeanVarianceNormalization",
    "MelWeightMatrix",
    "RandomNormal",
    "RandomUniform",
)
"""Operators that stay in float32 because ONNX Runtime (1.31, CPU) refuses their 16-bit forms."""


@dataclass(frozen=True)
class KeptNode:
    """A node with float32 inputs or outputs in the converted model.

    Attributes:
        name: Name of the node, or of its first output for a node without a name.
        op_type: Operator of the node.
        reason: The reason for float32.
    """

    name: str
    op_type: str
    reason: str


@dataclass(frozen=True)
class Conversion:
    """A converted model.

    Attributes:
        model: The model.
        clipped: Tensors in which the clamp changed elements.
        float32_nodes: Nodes with float32 inputs or outputs, and the reasons.
    """

    model: ir.Model
    clipped: tuple[ClippedTensor, ...]
    float32_nodes: tuple[KeptNode, ...]


@dataclass(frozen=True)
class Options:
    """Options of ``convert``, documented at ``convert_float16``."""

    clamp: Clamp
    keep_io_types: bool | Collection[str] = False
    disable_shape_infer: bool = False
    op_block_list: Collection[str] = DEFAULT_OP_BLOCK_LIST
    node_block_list: Collection[str] = ()


def convert_float16(
    model: Loadable,
    min_positive_val: float = 1e-7,
    max_finite_val: float = 1e4,
    keep_io_types: bool | Iterable[str] = False,
    disable_shape_infer: bool = False,
    op_block_list: Iterable[str] | None = None,
    node_block_list: Iterable[str] | None = None,
) -> Conversion:
    """Convert a model's float32 tensors to float16.

    Bodies and functions are converted too. Operators whose schemas exclude float16, or which are in a block list, stay
    in float32 between Casts; adjacent float32 operators share values without Casts.

    Args:
        model: A path, the bytes of a file, a message or a Model, which is not changed.
        min_positive_val: In weights, 0 < |x| < ``min_positive_val`` becomes ± ``min_positive_val``.
        max_finite_val: In weights, finite |x| > ``max_finite_val`` becomes ± ``max_finite_val``; at most 65504.
        keep_io_types: True preserves the types of the model's float32 inputs and outputs; a list of names, of these
            only. An input with a default value (an initializer of the same name) is a weight unless listed.
        disable_shape_infer: Use only the types written in the model; a node with unknown types stays in float32.
        op_block_list: Operators to leave in float32; None means ``DEFAULT_OP_BLOCK_LIST``.
        node_block_list: Names of nodes to leave in float32, with their bodies; a node without a name has the name of
            its first output.

    Returns:
        The converted model, the clipped tensors, and the nodes left in float32.

    Raises:
        OptionError: A limit is impossible, or a name in ``keep_io_types`` or ``node_block_list`` is not in the model.
        ModelFileError: The model cannot be read.
    """
    clamp = Clamp(ir.DataType.FLOAT16, min_positive_val, max_finite_val)
    options = make_options(clamp, keep_io_types, disable_shape_infer, op_block_list, node_block_list)
    return convert(private_copy(model), options)


def convert_bfloat16(
    model: Loadable,
    min_positive_val: float = 0.0,
    max_finite_val: float = normal_range(ir.DataType.BFLOAT16)[1],
    keep_io_types: bool | Iterable[str] = False,
    disable_shape_infer: bool = False,
    op_block_list: Iterable[str] | None = None,
    node_block_list: Iterable[str] | None = None,
) -> Conversion:
    """Convert a model's float32 tensors to bfloat16.

    Like ``convert_float16``, with limits that only prevent rounding to infinity, since bfloat16 has the range
    of float32 (and 8 bits of precision).

    Raises:
        UnsupportedError: The model imports a standard operator set older than 13, the first with bfloat16.
        OptionError: As for ``convert_float16``.
        ModelFileError: The model cannot be read.
    """
    clamp = Clamp(ir.DataType.BFLOAT16, min_positive_val, max_finite_val)
    options = make_options(clamp, keep_io_types, disable_shape_infer, op_block_list, node_block_list)
    return convert(private_copy(model), options)


def private_copy(source: Loadable) -> ir.Model:
    """Load the model, or copy a model in memory without the contents of its tensors."""
    if not isinstance(source, ir.Model):
        return model_io.load(source)
    copy = source.clone()
    copy.meta.update(source.meta)
    return copy


def convert(
    model: ir.Model,
    options: Options,
    keeps_too: Callable[[TypedModel], Collection[ir.Node]] | None = None,
    *,
    only_round: bool = False,
) -> Conversion:
    """Convert ``model`` in place.

    Args:
        model: The model.
        options: The options.
        keeps_too: Selects further nodes to leave in float32, from the model with functions specialized to their calls.
        only_round: Preserve all types, and round the values that conversion would round; see ``Rounder``.
    """
    _check(model, options)
    typed = TypedModel(model, infer=not options.disable_shape_infer, keeps=lambda node: bool(_listed(node, options)))
    chosen = frozenset(keeps_too(typed)) if keeps_too is not None else frozenset()
    request = Request(
        options.clamp.dtype,
        _keep_io(options),
        lambda node: _listed(node, options) or ("chosen by measured error" if node in chosen else ""),
    )
    plan = PlanBuilder(typed, request).build()
    keep_sizes(plan, typed)
    keep_quantized_regions(plan)
    if options.clamp.dtype == ir.DataType.FLOAT16:
        keep_batch_rotations(plan)
    keep_float32_movement(plan)
    float32_nodes = _float32_nodes(plan)
    applier = (Rounder if only_round else Applier)(typed, plan, options.clamp)
    applier.run()
    if not only_round:
        model_io.lower_ir_version(model)
    return Conversion(model, tuple(applier.clipped), float32_nodes)


def node_label(node: ir.Node) -> str:
    """Return the node's name, or the name of its first output."""
    return node.name or next((output.name for output in node.outputs if output.name), None) or node.op_type


def make_options(
    clamp: Clamp,
    keep_io_types: bool | Iterable[str],
    disable_shape_infer: bool,
    op_block_list: Iterable[str] | None,
    node_block_list: Iterable[str] | None,
) -> Options:
    """Return options from a caller's arguments.

    Raises:
        OptionError: A text instead of a list of names.
    """
    for name, argument in (
        ("keep_io_types", keep_io_types),
        ("op_block_list", op_block_list),
        ("node_block_list", node_block_list),
    ):
        if isinstance(argument, str):
            raise OptionError(f"expected a list of names, got the text {argument!r}", where=name)
    return Options(
        clamp,
        keep_io_types if isinstance(keep_io_types, bool) else frozenset(keep_io_types),
        disable_shape_infer,
        DEFAULT_OP_BLOCK_LIST if op_block_list is None else frozenset(op_block_list),
        frozenset(node_block_list or ()),
    )


def _listed(node: ir.Node, options: Options) -> str:
    if node.op_type in options.op_block_list:
        return "the operator is in op_block_list"
    return "the node is in node_block_list" if node_label(node) in options.node_block_list else ""


def _keep_io(options: Options) -> Callable[[str, bool], bool]:
    keep = options.keep_io_types
    if isinstance(keep, bool):
        return lambda name, has_default: keep and not has_default
    return lambda name, has_default: name in keep


def _check(model: ir.Model, options: Options) -> None:
    roots = (model.graph, *(function.graph for function in model.functions.values()))
    if not isinstance(options.keep_io_types, bool):
        names = {value.name for value in (*model.graph.inputs, *model.graph.outputs)}
        _refuse_unknown(set(options.keep_io_types) - names, "keep_io_types", "input or output")
    labels = {node_label(node) for root in roots for node in root.all_nodes()}
    _refuse_unknown(set(options.node_block_list) - labels, "node_block_list", "node")
    opset = model.graph.opset_imports.get("", model.graph.opset_imports.get("ai.onnx", 13))
    if options.clamp.dtype == ir.DataType.BFLOAT16 and opset < 13:
        raise UnsupportedError(
            f"bfloat16 requires operator set 13, the model imports {opset}",
            remedy="Convert the model first: sardonyx convert-opset MODEL --opset 13.",
        )


def _refuse_unknown(unknown: set[str], option: str, kind: str) -> None:
    if unknown:
        raise OptionError(f"unknown {kind} {', '.join(map(repr, sorted(unknown)))}", where=option)


def _float32_nodes(plan: Plan) -> tuple[KeptNode, ...]:
    touching = dict.fromkeys(plan.sources.values())
    touching.update((use.cell, None) for uses in plan.uses.values() for use in uses)
    nodes: dict[ir.Node, KeptNode] = {}
    for cell in touching:
        for node in cell.nodes:
            if not cell.low and node not in nodes:
                nodes[node] = KeptNode(node_label(node), node.op_type, cell.reason)
    return tuple(nodes.values())
