"""Masks: the least important weights become zero; shapes and bytes stay.

Weights are matrices of shape [groups, outputs, depth]; the depth has the input channels innermost, so that a pattern
of consecutive elements is one of consecutive input channels.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sardonyx.base.mapped_files import Spill, count_read
from sardonyx.compress.pruning.compensation import correct_bias
from sardonyx.compress.pruning.layer_inputs import LayerInputs
from sardonyx.compress.pruning.second_order import sparse_rows
from sardonyx.compress.pruning.shrink import replace_constant, write_tensor
from sardonyx.compress.quantization.placement import RECURRENT, recurrent_label
from sardonyx.compress.quantization.preparation import weight_bytes
from sardonyx.compress.quantization.site_inputs import SiteInput
from sardonyx.compress.samples import require_finite
from sardonyx.errors import OptionError
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.names import Names, node_label, value_names

_LONG_ROW = 4096
"""Elements from which a row is divided at a limit: sorting takes eight bytes an element, and several times as long."""

_MASKED = ("Conv", "ConvTranspose", "Gemm", "MatMul")

SPILLED_BYTES = 256 << 20
"""Bytes of weights from which changed ones are written to temporary files."""

_PANEL = 128
"""Columns whose zeros are chosen at once by second-order information."""


@dataclass(frozen=True)
class Pattern:
    """The places of zeros.

    Attributes:
        text: The pattern in words; empty for zeros in any place.
        zeros: Zeros of `of` consecutive input channels, or 0 for whole blocks.
        of: Input channels of a block.
        outputs: Output channels of a block.
    """

    text: str = ""
    zeros: int = 0
    of: int = 1
    outputs: int = 1

    @classmethod
    def of_text(cls, text: str | None) -> Pattern:
        """Return the pattern ``N:M`` (N nonzero of M input channels) or ``RxC`` (blocks of outputs and inputs).

        Raises:
            OptionError: The text has another form.
        """
        if text is None:
            return cls()
        match = re.fullmatch(r"([1-9]\d{0,3})([:x])([1-9]\d{0,3})", text)
        if match is not None:
            first, second = int(match[1]), int(match[3])
            if match[2] == "x" and first * second > 1:
                return cls(text, 0, second, first)
            if match[2] == ":" and first < second:
                return cls(text, second - first, second)
        raise OptionError(
            f"expected N:M such as '2:4', or RxC such as '16x1', got {text!r}.", where="pattern",
            remedy="Name N nonzero weights of M input channels with N below M, or a block of outputs and inputs.",
        )  # fmt: skip

    @property
    def share(self) -> float | None:
        """The share of zeros that the pattern fixes; None if it fixes none."""
        return self.zeros / self.of if self.zeros else None


@dataclass(frozen=True)
class MaskedLayer:
    """The zeros of a weight.

    Attributes:
        name: The name of the node.
        op_type: The operator.
        weights: The number of weights.
        zeros: The number of zeros of the result.
        fixed: The reason why the weight is unchanged; empty if masked.
    """

    name: str
    op_type: str
    weights: int
    zeros: int
    fixed: str


def input_axis(node: ir.Node) -> int:
    """Return the axis of the input channels of a weight: of Conv, ConvTranspose, Gemm and MatMul."""
    if node.op_type == "Conv":
        return 1
    if node.op_type == "ConvTranspose":
        return 0
    return 1 if node.op_type == "Gemm" and facts.attribute(node, "transB", 11, 0) else 0


@dataclass(frozen=True)
class MaskedInput:
    """A constant weight that a node of the main graph reads.

    Attributes:
        node: The node.
        index: The index of the input: 1, and 2 for the weight of a recurrent layer's state.
    """

    node: ir.Node
    index: int = 1

    @property
    def label(self) -> str:
        """The name of the node, for recurrent layers with that of the input."""
        is_recurrent = self.node.op_type in RECURRENT
        return recurrent_label(self.node, self.index) if is_recurrent else node_label(self.node)

    def is_excluded(self, exclude: Collection[str]) -> bool:
        """Return True if the name of the weight, of the node, or the operator is among names."""
        return not {self.label, node_label(self.node), self.node.op_type}.isdisjoint(exclude)


def weighted_inputs(model: ir.Model) -> list[MaskedInput]:
    """Return the constant weights of the main graph."""
    weights = []
    for node in model.graph:
        if node.domain not in ("", "ai.onnx") or node.op_type not in (*_MASKED, *RECURRENT):
            continue
        is_recurrent = node.op_type in RECURRENT
        for index in (1, 2) if is_recurrent else (1,):
            shape = facts.static_shape(node.inputs[index])
            if not facts.is_constant(node.inputs[index]) or shape is None or 0 in shape:
                continue
            if len(shape) == 3 if is_recurrent else len(shape) >= 2:
                weights.append(MaskedInput(node, index))
    return weights


def mask_weights(
    model: ir.Model,
    share: float,
    pattern: Pattern,
    criterion: str,
    statistics: LayerInputs | None,
    exclude: Collection[str] = (),
) -> tuple[tuple[MaskedLayer, ...], int]:
    """Set the least important weights of every layer to zero, in place.

    Args:
        model: The model.
        share: The share of zeros per layer.
        pattern: The places of zeros.
        criterion: ``"magnitude"``; ``"activation"``, the magnitude times the mean absolute input; ``"wanda"``, the
            magnitude times the norm of the input, compared within each output; ``"sparsegpt"``, by second moments,
            which updates the weights that stay.
        statistics: The inputs of layers; None without data.
        exclude: Names of nodes, or operators, whose weights stay.

    Returns:
        The layers, and the number of corrected biases.

    Raises:
        EvaluationError: A weight or an activation is not finite.
    """
    names = Names(value_names(model))
    layers = []
    corrected = 0
    spill = Spill() if weight_bytes(model) >= SPILLED_BYTES else None
    originals: dict[ir.Value | None, ir.TensorProtocol] = {}
    weights = weighted_inputs(model)
    maskable = {(one.node, one.index) for one in weights if not one.is_excluded(exclude)}
    for one in weights:
        node, source, old = one.node, one.node.inputs[0], one.node.inputs[one.index]
        dense = facts.constant_tensor(old)
        assert dense is not None and old is not None
        weight = dense.numpy()
        count_read(weight.nbytes)  # Of a large file, pages that are read are released.
        rows = as_rows(node, weight)
        fixed = ""
        if (node, one.index) not in maskable:
            fixed = "excluded"
        elif old in originals:
            fixed = "the weight is shared with a layer that is masked already"
        elif node.op_type == "Conv" and facts.attribute(node, "group", 11, 1) > 1 and weight.shape[1] == 1:
            fixed = "a depthwise convolution has few weights, and each matters"
        elif (channels := weight.shape[_input_axis(node, weight)]) % pattern.of:
            fixed = f"{channels} input channels are not a multiple of {pattern.of}"
        elif rows.shape[1] % pattern.outputs:
            fixed = f"{rows.shape[1]} outputs are not a multiple of {pattern.outputs}"
        seen = None if statistics is None else statistics.get(one.label)
        result = weight
        if not fixed:
            tensor = _sparse(one, dense, rows, share, pattern, criterion, seen, spill)
            value = write_tensor(model, names, node, one.index, tensor)
            result = tensor.numpy()
            for use in list(old.uses()):  # Other products by the same weight read the masked one too.
                if (use.node, use.idx) in maskable:
                    replace_constant(model, use.node, use.idx, value)
            originals[value] = dense
        original = originals.get(node.inputs[one.index])
        if source is not None and seen is not None and seen.means is not None and original is not None:
            lost = (original.numpy().astype(np.float32) - result.astype(np.float32)).astype(weight.dtype)
            corrected += correct_bias(model, node, lost, seen.means)
        zeros = int(result.size - np.count_nonzero(result))
        layers.append(MaskedLayer(one.label, node.op_type, int(result.size), zeros, fixed))
    return tuple(layers), corrected


def _input_axis(node: ir.Node, weight: np.ndarray) -> int:
    if node.op_type in RECURRENT:
        return 2
    return input_axis(node) if node.op_type != "MatMul" else weight.ndim - 2


def as_rows(node: ir.Node, weight: np.ndarray) -> np.ndarray:
    """Return a weight as matrices of shape [groups, outputs, depth], input channels innermost."""
    moved = np.moveaxis(weight, _input_axis(node, weight), -1)
    if node.op_type == "Conv":
        groups = int(facts.attribute(node, "group", 11, 1))
        return np.ascontiguousarray(moved).reshape(groups, weight.shape[0] // groups, -1)
    if node.op_type in RECURRENT:  # All directions read the same inputs.
        return np.ascontiguousarray(moved).reshape(1, -1, moved.shape[-1])
    groups = _input_groups(node)
    return np.ascontiguousarray(moved.reshape(-1, groups, moved.shape[-1] // groups).transpose(1, 0, 2))


def from_rows(node: ir.Node, rows: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return matrices of :func:`as_rows` in the shape of the weight."""
    axis = _input_axis(node, np.empty(shape, bool))
    moved = [size for index, size in enumerate(shape) if index != axis]
    if node.op_type != "Conv" and node.op_type not in RECURRENT:
        rows = rows.transpose(1, 0, 2)
    return np.ascontiguousarray(np.moveaxis(rows.reshape(*moved, shape[axis]), -1, axis))


def _input_groups(node: ir.Node) -> int:
    """Return the groups that divide the axis of input channels of a weight: those of a transposed convolution."""
    return int(facts.attribute(node, "group", 11, 1)) if node.op_type == "ConvTranspose" else 1


def _sparse(
    one: MaskedInput, dense: ir.TensorProtocol, rows: np.ndarray, share: float, pattern: Pattern, criterion: str,
    seen: SiteInput | None, spill: Spill | None,
) -> ir.TensorProtocol:  # fmt: skip
    """Return the weight of one layer with zeros."""
    array = dense.numpy()
    updated = _updated(one, rows, share, pattern, criterion, seen)
    if updated is not None:
        weight = from_rows(one.node, updated, array.shape).astype(array.dtype)
        return ir.tensor(weight if spill is None else spill.array(weight), dtype=dense.dtype)
    stays = from_rows(one.node, _choice(one, rows, share, pattern, criterion, seen), array.shape)
    return _masked(dense, stays, spill)


def _masked(dense: ir.TensorProtocol, stays: np.ndarray, spill: Spill | None) -> ir.TensorProtocol:
    """Return a weight with zeros that is computed where it is read: a bit per element is held, not the product.

    A program that is compiled holds all of its weights until they are packed: those of large models are in files.
    """
    bits = np.packbits(stays)

    def contents() -> ir.TensorProtocol:
        array = dense.numpy()
        count_read(array.nbytes)
        chosen = np.unpackbits(bits, count=array.size).view(np.bool_).reshape(array.shape)
        weight = np.where(chosen, array, np.zeros((), array.dtype))
        return ir.tensor(weight if spill is None else spill.array(weight), dtype=dense.dtype)

    return ir.LazyTensor(contents, dense.dtype, ir.Shape(list(stays.shape)))


def _updated(
    one: MaskedInput, rows: np.ndarray, share: float, pattern: Pattern, criterion: str, seen: SiteInput | None
) -> np.ndarray | None:
    """Return the rows with zeros and updated other weights; None if weights that stay are unchanged."""
    moment = None if seen is None else seen.second_moment
    if criterion != "sparsegpt" or moment is None:
        return None
    order = _taps_outermost(one.node, rows.shape[2])
    panel = max(_PANEL // pattern.of, 1) * pattern.of

    def choose(importance: np.ndarray) -> np.ndarray:
        return _stays(importance, share, pattern, by_row=False)

    rows = rows.astype(np.float32, copy=False)
    require_finite(one.label, rows, moment)
    inner = [sparse_rows(group, moment[i][np.ix_(order, order)], choose, panel) for i, group in enumerate(rows)]
    return np.stack(inner).astype(np.float32)


def _choice(
    one: MaskedInput, rows: np.ndarray, share: float, pattern: Pattern, criterion: str, seen: SiteInput | None
) -> np.ndarray:
    """Return True for the elements of rows that stay."""
    order = _taps_outermost(one.node, rows.shape[2])
    importance = np.abs(rows.astype(np.float32, copy=False))
    if criterion in ("wanda", "sparsegpt") and seen is not None and seen.squares is not None:
        importance = importance * np.sqrt(seen.squares)[:, None, order].astype(np.float32)
    elif criterion == "activation" and seen is not None and seen.magnitudes is not None:
        size = seen.magnitudes.reshape(len(rows), -1).astype(np.float32)
        if rows.shape[2] % size.shape[1] == 0:
            importance = importance * np.tile(size, rows.shape[2] // size.shape[1])[:, None]
    require_finite(one.label, importance)
    flat = np.square(importance, out=importance).reshape(-1, rows.shape[2])
    return _stays(flat, share, pattern, by_row=criterion in ("wanda", "sparsegpt")).reshape(rows.shape)


def _taps_outermost(node: ir.Node, depth: int) -> np.ndarray:
    """Return the index of each element of :func:`as_rows` in rows of patches, [channels, *kernel]."""
    shape = facts.static_shape(node.inputs[1])
    if node.op_type != "Conv" or shape is None:
        return np.arange(depth)
    return np.arange(depth).reshape(shape[1], -1).T.reshape(-1)


def _stays(importance: np.ndarray, share: float, pattern: Pattern, *, by_row: bool) -> np.ndarray:
    """Return True for the weights that stay, of shape [outputs, columns], by squared importance."""
    outputs, columns = importance.shape
    if pattern.zeros:
        blocks = importance.reshape(-1, pattern.of)
        return _largest(blocks, pattern.zeros).reshape(importance.shape)
    if pattern.text:
        tiles = importance.reshape(outputs // pattern.outputs, pattern.outputs, columns // pattern.of, pattern.of)
        sums = tiles.sum((1, 3))
        stays = _largest(sums.reshape(1, -1), round(share * sums.size)).reshape(sums.shape)
        return np.repeat(np.repeat(stays, pattern.outputs, 0), pattern.of, 1)
    rows = importance if by_row else importance.reshape(1, -1)
    return _largest(rows, round(share * rows.shape[1])).reshape(importance.shape)


def _largest(rows: np.ndarray, zeros: int) -> np.ndarray:
    """Return False for the smallest elements of each row, the first ones among equals."""
    stays = np.ones(rows.shape, bool)
    if rows.shape[1] < _LONG_ROW:
        np.put_along_axis(stays, np.argsort(rows, axis=1, kind="stable")[:, :zeros], False, axis=1)
        return stays
    for row, stay in zip(rows, stays, strict=True) if zeros else ():
        limit = np.partition(row, zeros - 1)[zeros - 1]
        np.greater(row, limit, out=stay)
        # Of the elements that equal the limit, as many become zero as smaller ones leave.
        equal = np.flatnonzero(row == limit)
        stay[equal[zeros - (row.size - int(stay.sum()) - equal.size) :]] = True
    return stays
