"""Converts a float32 model to 16-bit floats, leaving in float32 what its operators cannot take."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import onnx_ir as ir

from sardonyx import model as model_io
from sardonyx.compress.float16.casts import Applier
from sardonyx.compress.float16.clamp import Clamp, ClippedTensor, normal_range
from sardonyx.compress.float16.inference import TypedModel
from sardonyx.compress.float16.plan import Plan, PlanBuilder, Wishes
from sardonyx.compress.float16.regions import (
    keep_batch_rotations,
    keep_movement_between_kept,
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
"""Operators that stay in float32 although their schemas allow 16 bits: ONNX Runtime (1.31, CPU) refuses them."""


@dataclass(frozen=True)
class KeptNode:
    """A node that has float32 inputs or outputs left.

    Attributes:
        name: The node's name, or that of its first output where it has none.
        op_type: Its operator.
        reason: Why.
    """

    name: str
    op_type: str
    reason: str


@dataclass(frozen=True)
class Conversion:
    """A converted model.

    Attributes:
        model: The model.
        clipped: Every tensor in which the clamp changed elements.
        kept: Every node that has float32 inputs or outputs left, and why.
    """

    model: ir.Model
    clipped: tuple[ClippedTensor, ...]
    kept: tuple[KeptNode, ...]


@dataclass(frozen=True)
class Options:
    """What ``convert`` does; ``convert_float_to_float16`` says what each means."""

    clamp: Clamp
    keep_io_types: bool | Collection[str] = False
    disable_shape_infer: bool = False
    op_block_list: Collection[str] = DEFAULT_OP_BLOCK_LIST
    node_block_list: Collection[str] = ()


def convert_float_to_float16(
    model: Loadable,
    min_positive_val: float = 1e-7,
    max_finite_val: float = 1e4,
    keep_io_types: bool | Iterable[str] = False,
    disable_shape_infer: bool = False,
    op_block_list: Iterable[str] | None = None,
    node_block_list: Iterable[str] | None = None,
) -> Conversion:
    """Converts a model's float32 tensors to float16.

    Bodies and functions are converted too. Where an operator's schema allows no float16, or the operator is in a
    block list, it stays in float32 behind Casts; neighbours that stay share values without Casts between them.

    Args:
        model: A path, the bytes of a file, a message or a Model. It is not changed.
        min_positive_val: In weights, 0 < |x| < ``min_positive_val`` becomes ± ``min_positive_val``.
        max_finite_val: In weights, finite |x| > ``max_finite_val`` becomes ± ``max_finite_val``; at most 65504.
        keep_io_types: True keeps the model's float32 inputs and outputs as they are; a list of names keeps those.
            An input that has a default value (an initializer of the same name) is a weight unless it is named.
        disable_shape_infer: Takes only the types written in the model; a node with other types stays in float32.
        op_block_list: Operators to leave in float32; None means ``DEFAULT_OP_BLOCK_LIST``.
        node_block_list: Names of nodes to leave in float32, with their bodies; a node without a name goes by the name
            of its first output.

    Returns:
        The converted model, the tensors that were clipped, and the nodes left in float32.

    Raises:
        OptionError: A limit is impossible, or a name in ``keep_io_types`` or ``node_block_list`` is not in the model.
        ModelFileError: The model cannot be read.
    """
    clamp = Clamp(ir.DataType.FLOAT16, min_positive_val, max_finite_val)
    options = make_options(clamp, keep_io_types, disable_shape_infer, op_block_list, node_block_list)
    return convert(private_copy(model), options)


def convert_float_to_bfloat16(
    model: Loadable,
    min_positive_val: float = 0.0,
    max_finite_val: float = normal_range(ir.DataType.BFLOAT16)[1],
    keep_io_types: bool | Iterable[str] = False,
    disable_shape_infer: bool = False,
    op_block_list: Iterable[str] | None = None,
    node_block_list: Iterable[str] | None = None,
) -> Conversion:
    """Converts a model's float32 tensors to bfloat16.

    As ``convert_float_to_float16``, with limits that only catch what would round to an infinity, since bfloat16 has
    the range of float32 (and 8 bits of precision).

    Raises:
        UnsupportedError: The model imports a standard operator set older than 13, the first that knows bfloat16.
        OptionError: As for ``convert_float_to_float16``.
        ModelFileError: The model cannot be read.
    """
    clamp = Clamp(ir.DataType.BFLOAT16, min_positive_val, max_finite_val)
    options = make_options(clamp, keep_io_types, disable_shape_infer, op_block_list, node_block_list)
    return convert(private_copy(model), options)


def private_copy(source: Loadable) -> ir.Model:
    """Loads the model; one that is in memory already is copied, without its tensors' contents."""
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
    """Converts ``model`` in place.

    Args:
        model: The model.
        options: How.
        keeps_too: More nodes to leave in float32, given the model with its functions made particular to their calls.
        only_round: Keeps all types, and rounds values where the converted model would; see ``Rounder``.
    """
    _check(model, options)
    typed = TypedModel(model, infer=not options.disable_shape_infer, keeps=lambda node: bool(_listed(node, options)))
    more = frozenset(keeps_too(typed)) if keeps_too is not None else frozenset()
    wishes = Wishes(
        options.clamp.dtype,
        _keep_io(options),
        lambda node: _listed(node, options) or ("chosen by measured error" if node in more else ""),
    )
    plan = PlanBuilder(typed, wishes).build()
    keep_sizes(plan, typed)
    keep_quantized_regions(plan)
    if options.clamp.dtype == ir.DataType.FLOAT16:
        keep_batch_rotations(plan)
    keep_movement_between_kept(plan)
    kept = _kept_nodes(plan)
    applier = (Rounder if only_round else Applier)(typed, plan, options.clamp)
    applier.run()
    if not only_round:
        model_io.lower_ir_version(model)
    return Conversion(model, tuple(applier.clipped), kept)


def node_label(node: ir.Node) -> str:
    """The node's name, or that of its first output where it has none."""
    return node.name or next((output.name for output in node.outputs if output.name), None) or node.op_type


def make_options(
    clamp: Clamp,
    keep_io_types: bool | Iterable[str],
    disable_shape_infer: bool,
    op_block_list: Iterable[str] | None,
    node_block_list: Iterable[str] | None,
) -> Options:
    """Options from arguments as callers give them.

    Raises:
        OptionError: One text where a list of names is wanted.
    """
    for name, given in (
        ("keep_io_types", keep_io_types),
        ("op_block_list", op_block_list),
        ("node_block_list", node_block_list),
    ):
        if isinstance(given, str):
            raise OptionError(f"{given!r} is one text, not a list of names", where=name)
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
            f"the model imports operator set {opset}, and bfloat16 is first known to 13",
            remedy="Convert it first: sardonyx convert-opset MODEL 13.",
        )


def _refuse_unknown(unknown: set[str], option: str, kind: str) -> None:
    if unknown:
        raise OptionError(f"the model has no {kind} named {', '.join(map(repr, sorted(unknown)))}", where=option)


def _kept_nodes(plan: Plan) -> tuple[KeptNode, ...]:
    touching = dict.fromkeys(plan.sources.values())
    touching.update((use.cell, None) for uses in plan.uses.values() for use in uses)
    kept: dict[ir.Node, KeptNode] = {}
    for cell in touching:
        for node in cell.nodes:
            if not cell.low and node not in kept:
                kept[node] = KeptNode(node_label(node), node.op_type, cell.reason)
    return tuple(kept.values())
