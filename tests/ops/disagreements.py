"""Recorded disagreements between the definitions here and another evaluator, with the deciding sentence."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.ops.generators.draw import Case

ONNX, RUNTIME = "onnx.reference", "onnxruntime"
EVALUATORS = (ONNX, RUNTIME)

When = Callable[[Case], bool]


@dataclass(frozen=True)
class Disagreement:
    """A resolved difference.

    Attributes:
        operators: The operators.
        evaluator: The evaluator that is wrong or decides otherwise.
        when: Returns True for a case in which the difference may occur.
        reason: The sentence of the specification, or the point that the specification leaves open.
    """

    operators: tuple[str, ...]
    evaluator: str
    when: When
    reason: str

    def covers(self, case: Case, evaluator: str) -> bool:
        """Return True if a difference of a case from an evaluator's result is this one."""
        return case.name in self.operators and evaluator == self.evaluator and self.when(case)


def _always(case: Case) -> bool:
    return True


def _has(*names: str) -> When:
    """Return a condition: the case sets one of these attributes to a value other than 0."""
    return lambda case: any(case.attributes.get(name) for name in names)


def _before(opset: int) -> When:
    return lambda case: case.opset < opset


def _is_empty(case: Case) -> bool:
    return 0 in case.inputs[0].shape


def _is(kind: str) -> When:
    """Return a condition: the first input has elements of this kind."""
    return lambda case: case.inputs[0].dtype.kind in kind


def _is_not_float32(case: Case) -> bool:
    return bool(case.inputs[0].dtype != np.float32)


def _is_double(case: Case) -> bool:
    return bool(case.inputs[0].dtype == np.float64)


def _is_interpolated(case: Case) -> bool:
    return case.attributes.get("mode") != "nearest"


def _both(*conditions: When) -> When:
    return lambda case: all(condition(case) for condition in conditions)


def _has_input(position: int) -> When:
    return lambda case: len(case.inputs) > position and case.inputs[position] is not None


def _slice_ends(case: Case, axis_wide: bool) -> bool:
    """Return True for a backward step with an end past the last element, or a start before the first one."""
    x, starts, ends, axes, steps = case.inputs
    if steps is None:
        return False
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step < 0 and (end == 2**63 - 1 if axis_wide else start < -x.shape[axis]):
            return True
    return False


def _first_row_from_padding(case: Case) -> bool:
    return _has("auto_pad")(case) and any(
        stride > size for stride, size in zip(case.attributes["strides"], case.inputs[1].shape[2:], strict=True)
    )


def _one_pixel(case: Case) -> bool:
    return bool(case.attributes.get("align_corners")) and 1 in case.inputs[1][2:]


def _nearly_constant(case: Case) -> bool:
    """Return True if some jointly normalized numbers are close to their mean, and far from 0."""
    x = np.asarray(case.inputs[0], np.float64)
    lines = x.reshape(x.shape[0], case.attributes.get("num_groups", x.shape[1]), -1)
    return bool((lines.std(-1) < 0.05 * np.abs(lines.mean(-1))).any())


def _nearly_constant_batch(case: Case) -> bool:
    """Return True if a channel whose moments are those of the batch is nearly constant."""
    if not case.attributes.get("training_mode"):
        return False
    x = np.asarray(case.inputs[0], np.float64)
    channels = np.moveaxis(x, 1, 0).reshape(x.shape[1], -1)
    return bool((channels.std(-1) < 0.05 * np.abs(channels.mean(-1))).any())


def _halves_are_large(case: Case) -> bool:
    """Return True if a one-step difference of 16-bit terms before an activation is visible after it."""
    x, w, r, b, _, h = (None if array is None else np.abs(np.asarray(array, np.float64)) for array in case.inputs[:6])
    if case.inputs[0].dtype.itemsize != 2:
        return False
    state = max(1.0, 0.0 if h is None else h.max(initial=0.0))
    terms = x.max((0, 1)) @ w.max((0, 1)) + state * r.sum(-1).max() + (0.0 if b is None else 2 * b.max())
    return bool(terms > 4)


def _gates_without_bound(case: Case) -> bool:
    """Return True if the gates of a direction are activated by Relu."""
    return "Relu" in case.attributes.get("activations", ())[:: {"LSTM": 3, "GRU": 2}[case.name]]


def _one_causal_query(case: Case) -> bool:
    """Return True for a single causal query with a past."""
    q, _, _, _, past, _ = case.inputs
    return bool(case.attributes.get("is_causal")) and q.shape[-2] == 1 and past is not None


def _raw_scores_capped(case: Case) -> bool:
    return case.attributes.get("qk_matmul_output_mode") == 0 and bool(case.attributes.get("softcap"))


_REDUCTIONS = (
    "ReduceSum", "ReduceMax", "ReduceMin", "ReduceMean", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
    "ReduceLogSumExp", "ReduceSumSquare",
)  # fmt: skip

DISAGREEMENTS: tuple[Disagreement, ...] = (
    # Elementwise.
    Disagreement(
        ("Clip",), RUNTIME, lambda case: case.opset >= 11 and None in [*case.inputs, None][1:],
        "without a bound, the function body of Clip does not compare: infinities stay. ONNX Runtime bounds by the "
        "greatest and the lowest finite number",
    ),
    Disagreement(
        ("Softmax", "LogSoftmax", "Hardmax"), ONNX, _before(13),
        "before version 13, 'the operation coerces the input into a 2-dimensional tensor' at the axis",
    ),
    Disagreement(
        ("Dropout",), RUNTIME, _before(12),
        "the mask of inference is all true since version 12; earlier versions leave it open",
    ),
    Disagreement(
        ("Sign",), RUNTIME, _both(_is("f"), lambda case: case.inputs[0].dtype.itemsize == 2),
        "the specification leaves the sign of NaN open: NaN, as in ONNX Runtime for float32; for float16 it returns 0",
    ),
    Disagreement(
        ("PRelu",), ONNX, lambda case: not np.isfinite(case.inputs[1]).all(),
        "'f(x) = x for x >= 0', also for an infinite or NaN slope",
    ),
    # Indexing.
    Disagreement(
        ("Gather",), RUNTIME, _is("O"),
        "strings are gathered like numbers; ONNX Runtime leaves some of them empty",
    ),
    Disagreement(
        ("NonZero",), RUNTIME, lambda case: case.inputs[0].ndim == 0,
        "'for scalar input, NonZero produces output shape (0, N) instead of (1, N)'",
    ),
    Disagreement(
        ("Unique",), ONNX, _both(_has("axis"), lambda case: case.attributes.get("sorted") == 0),
        "unsorted, the first occurrences are taken along the axis; onnx's evaluator uses another axis",
    ),
    Disagreement(
        ("Slice",), RUNTIME, lambda case: len(case.inputs) == 5 and _slice_ends(case, axis_wide=True),
        "'end is clamped to [-1, dims[axes[i]]-1]' for negative steps; ONNX Runtime reads the greatest int64 as -1",
    ),
    Disagreement(
        ("Slice",), ONNX, lambda case: len(case.inputs) == 5 and _slice_ends(case, axis_wide=False),
        "'start is clamped to [0, dims[axes[i]]-1]' for negative steps: never before the first element",
    ),
    # Normalizations, losses, products.
    *(
        Disagreement(
            ("InstanceNormalization", "GroupNormalization", "MeanVarianceNormalization"), evaluator, _nearly_constant,
            "the mean of squares minus the square of the mean cancels; squares of differences, as here, do not",
        )
        for evaluator in EVALUATORS
    ),
    Disagreement(
        ("BatchNormalization",), RUNTIME, _nearly_constant_batch,
        "the difference from the mean is scaled; ONNX Runtime scales both terms before subtracting",
    ),
    Disagreement(
        ("LpNormalization",), ONNX, lambda case: case.attributes.get("p") == 1,
        "the norm of p = 1 sums absolute values",
    ),
    Disagreement(
        ("MeanVarianceNormalization",), RUNTIME, lambda case: math.prod(case.inputs[0].shape[2:]) == 1,
        "the function body adds 1e-9 to the deviation: 0 over a deviation of 0 is 0",
    ),
    Disagreement(
        ("NegativeLogLikelihoodLoss",), ONNX, _both(_has("ignore_index"), lambda case: not _has_input(2)(case)),
        "the function body gives ignored labels weight 0, and the mean divides by the sum of weights",
    ),
    Disagreement(
        ("MatMul",), RUNTIME, lambda case: 0 in case.inputs[0].shape[-1:],
        "an empty sum is 0, in the shape of numpy.matmul; ONNX Runtime leaves the result uninitialized",
    ),
    # Element types.
    Disagreement(
        ("LayerNormalization", "BatchNormalization", "RMSNormalization", "AffineGrid", "Det"), ONNX, _is_not_float32,
        "every result has the type of its type variable: U for moments, V for scaled values; onnx's evaluator "
        "returns numpy's type",
    ),
    *(
        Disagreement(
            ("LayerNormalization", "GroupNormalization"), evaluator, _is_double,
            "the first stage is computed in the type of stash_type, which is float32: doubles are rounded to it",
        )
        for evaluator in EVALUATORS
    ),
    Disagreement(
        ("DeformConv",), ONNX, _is_not_float32, "onnx's evaluator computes offsets in float32 for every element type",
    ),
    Disagreement(
        ("GroupNormalization",), ONNX, _both(_is_not_float32, lambda case: case.inputs[0].dtype.itemsize == 2),
        "onnx's evaluator rounds every step to 16 bits",
    ),
    Disagreement(
        ("Trilu", "CenterCropPad", "Pad"), ONNX, _is("O"),
        "missing strings are empty strings; onnx's evaluator inserts a number",
    ),
    *(
        Disagreement(
            ("ScatterElements", "ScatterND"), evaluator,
            _both(_is("cO"), lambda case: case.attributes.get("reduction", "none") != "none"),
            "complex numbers have no order, and strings no sum: both are refused",
        )
        for evaluator in EVALUATORS
    ),
    Disagreement(
        ("Cast", "CastLike"), ONNX, _is("O"),
        "a string is the number that it spells, '0' is false; for onnx's evaluator every nonempty string is true",
    ),
    Disagreement(("Col2Im",), ONNX, _is("b"), "booleans have no sum: they are refused"),
    Disagreement(
        ("GridSample",), ONNX, _both(_is_not_float32, _is_interpolated),
        "integers are interpolated like floats, doubles at double coordinates; onnx's evaluator uses float32 "
        "coordinates, and rounds the weights to integers",
    ),
    Disagreement(
        ("Resize",), ONNX, lambda case: _is("c")(case) or (_is_not_float32(case) and _is_interpolated(case)),
        "rounding of integers is left open: toward zero, like casts and ONNX Runtime; doubles are read at "
        "double coordinates, and complex numbers are interpolated by parts",
    ),
    # Recurrent layers.
    Disagreement(
        ("RNN", "GRU", "LSTM"), ONNX,
        lambda case: _has_input(4)(case) or any(name in case.attributes for name in ("clip", "activations")),
        "onnx's evaluator ignores sequence_lens, clip and activations",
    ),
    Disagreement(
        ("GRU", "LSTM"), ONNX, lambda case: case.attributes["direction"] != "forward" or _has("input_forget")(case),
        "onnx's evaluator supports neither other directions nor input_forget",
    ),
    Disagreement(
        ("RNN", "GRU", "LSTM"), ONNX, _halves_are_large,
        "the sum before an activation is computed in float32 and rounded once; onnx's evaluator rounds each of its "
        "products and partial sums to 16 bits, an error of one step of the largest term under cancellation",
    ),
    Disagreement(
        ("RNN", "GRU", "LSTM"), RUNTIME, _has("clip"),
        "clip 'bounds the elements of a tensor in the range of [-threshold, +threshold] and is applied to the input of "
        "activations': of every activation",
    ),
    Disagreement(
        ("GRU", "LSTM"), RUNTIME, _gates_without_bound,
        "ONNX Runtime's Sigmoid has a small absolute and a large relative error, visible at a gate of 300",
    ),
    # Reductions.
    Disagreement(
        _REDUCTIONS, RUNTIME, _is_empty,
        "axes of every size are reduced: 'keepdims=0: the reduced dimension is pruned'. ONNX Runtime returns the "
        "shape of its input if the input is empty",
    ),
    Disagreement(
        _REDUCTIONS, ONNX, lambda case: case.inputs[0].dtype.itemsize == 2 and not _is("iu")(case),
        "partial results are float32; onnx's evaluator uses 16 bits, which overflow",
    ),
    Disagreement(
        ("ReduceMean",), ONNX, _both(_is_empty, _is("iu")),
        "the specification leaves the mean of no integers undefined: it is refused",
    ),
    Disagreement(
        ("ReduceLogSumExp", "ReduceLogSum", "ReduceL2"), RUNTIME, _is("iu"),
        "the result is the function of the elements, rounded once; ONNX Runtime rounds every step to an integer",
    ),
    Disagreement(
        ("ReduceLogSumExp",), ONNX, lambda case: bool(np.isinf(case.inputs[0]).any()),
        "the logarithm of exp(-inf) is -inf; onnx's evaluator subtracts an infinite maximum",
    ),
    Disagreement(
        ("ReduceSumSquare",), ONNX, _is("iu"),
        "the output has the input's type T; numpy's sum is int64",
    ),
    Disagreement(
        ("ReduceMin", "ReduceMax"), RUNTIME,
        _both(_is("f"), lambda case: bool(np.isnan(case.inputs[0]).any())),
        "the specification leaves NaN open: NaN here, as in numpy and onnx's evaluator",
    ),
    # Attention.
    Disagreement(
        ("Attention",), ONNX, _raw_scores_capped,
        "mode 0 gives 'the output of qk matmul', before the cap",
    ),
    Disagreement(
        ("Attention",), RUNTIME, lambda case: case.attributes.get("qk_matmul_output_mode") == 2,
        "a mask adds -inf; ONNX Runtime adds the lowest finite number",
    ),
    Disagreement(
        ("Attention",), RUNTIME, _one_causal_query,
        "causal: a query attends keys up to its own position, which is its index plus the length of the past; "
        "in ONNX Runtime a single query attends all keys",
    ),
    Disagreement(
        ("Shape",), ONNX, _has("end"),
        "'start and end are clamped to [0, r]'; onnx's evaluator counts a smaller end from the end again",
    ),
    # Images.
    Disagreement(
        ("Resize",), RUNTIME,
        lambda case: case.attributes["coordinate_transformation_mode"] == "align_corners" and case.inputs[2].size > 0,
        "by the standard's own data, length_resized of align_corners is scale * length, which may be a fraction",
    ),
    Disagreement(
        ("Resize",), ONNX, lambda case: case.attributes["coordinate_transformation_mode"] == "pytorch_half_pixel",
        "'x_original = length_resized > 1 ? … : 0': the length of the resized tensor is an integer",
    ),
    Disagreement(
        ("GridSample",), ONNX,
        lambda case: case.attributes.get("mode") == "cubic" and case.attributes.get("padding_mode") == "border",
        "'border: use border values for out-bound grid locations': clamped are each of the 16 pixels around a "
        "coordinate, not the coordinate",
    ),
    *(
        Disagreement(
            ("AffineGrid",), evaluator, _one_pixel,
            "the one pixel of an axis is at -1 and at 1 by align_corners: its coordinate is left open; 0 as in PyTorch",
        )
        for evaluator in EVALUATORS
    ),
    # Windows.
    Disagreement(
        ("ConvTranspose",), ONNX, lambda case: case.attributes["group"] > 1,
        "onnx's evaluator mixes up the groups",
    ),
    Disagreement(
        ("ConvTranspose",), RUNTIME, _first_row_from_padding,
        "'output_shape[i] = input_shape[i] * strides[i]' for auto_pad SAME, also if that exceeds the full result",
    ),
    Disagreement(
        ("MaxPool", "AveragePool", "LpPool"), ONNX, _has("ceil_mode", "auto_pad"),
        "onnx's evaluator counts windows differently, and lets some begin in the padding after the image",
    ),
    Disagreement(
        ("MaxPool",), ONNX, lambda case: case.outputs == 2 or any(case.attributes.get("pads", ())),
        "'indices are computed as flatten 1-D tensor' of all images, and padding is on every axis; onnx's evaluator "
        "counts within one image, and drops windows",
    ),
    Disagreement(
        ("MaxPool", "AveragePool", "LpPool"), RUNTIME, lambda case: case.attributes.get("auto_pad") == "SAME_UPPER",
        "padding is never negative: if windows are smaller than strides, the first begins at the first element",
    ),
    Disagreement(
        ("GlobalMaxPool",), ONNX, _always,
        "'the output has the same rank: the first two dimensions, and all others 1'; onnx's evaluator adds an axis",
    ),
    Disagreement(
        ("LRN",), ONNX, _always,
        "'square_sum[n, c, …] = sum(X[n, i, …]^2)' over channels; onnx's evaluator bounds them by the batch",
    ),
    # Sequences, control flow and strings.
    Disagreement(
        ("SequenceInsert",), ONNX, _has_input(2),
        "'accepted range for position is in [-n, n]': at n, the tensor is appended; onnx's evaluator inserts "
        "before the last",
    ),
    Disagreement(
        ("SplitToSequence",), RUNTIME, _has_input(1),
        "'keepdims: if input split is specified, this attribute is ignored'",
    ),
    Disagreement(
        ("Loop",), ONNX, _always,
        "scan outputs are stacked along a new first axis, not concatenated along an existing one",
    ),
    Disagreement(
        ("Loop",), RUNTIME, lambda case: not _has_input(1)(case),
        "without a condition as input, the condition of the body 'is ignored'",
    ),
    Disagreement(
        ("StringSplit",), RUNTIME, _has("delimiter"),
        "an empty string split at a delimiter is one empty string, as in the standard's function; ONNX Runtime "
        "gives none",
    ),
    Disagreement(
        ("StringNormalizer",), ONNX, lambda case: not case.attributes.get("is_case_sensitive"),
        "'is_case_sensitive: whether the identification of stop words in X is case-sensitive': by default it is not",
    ),
    Disagreement(
        ("RegexFullMatch",), ONNX, lambda case: "w" in case.attributes["pattern"],
        "patterns are RE2's, whose \\w is ASCII; onnx's evaluator uses Python's",
    ),
)  # fmt: skip
