"""Models whose requests must not be merged, and the judgement of a verdict on other inputs than those of the proof.

Each hostile model declares an open first size on every input and output, and is computed per batch: by statistics or
order over rows, by shapes that depend on the number of rows, or by values of the first row.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx

from sardonyx.errors import SardonyxError
from sardonyx.runtime.profiling.profile import drawn_feeds
from sardonyx.runtime.session import Session
from sardonyx.serve.models.interface import Interface

_X = "float[N, 4] x"
_Y = "float[N, 4] y"

HOSTILE: dict[str, str] = {
    "batch mean": f"({_X}) => ({_Y}) <int64[1] a = {{0}}> {{ m = ReduceMean<keepdims=1>(x, a) y = Sub(x, m) }}",
    "batch sum": f"({_X}) => ({_Y}) <int64[1] a = {{0}}> {{ m = ReduceSum<keepdims=1>(x, a) y = Add(x, m) }}",
    "batch maximum": f"({_X}) => ({_Y}) <int64[1] a = {{0}}> {{ m = ReduceMax<keepdims=1>(x, a) y = Div(x, m) }}",
    "batch minimum": f"({_X}) => ({_Y}) <int64[1] a = {{0}}> {{ m = ReduceMin<keepdims=1>(x, a) y = Sub(x, m) }}",
    "batch product": f"({_X}) => ({_Y}) <int64[1] a = {{0}}> {{ m = ReduceProd<keepdims=1>(x, a) y = Add(x, m) }}",
    "batch norm L2": f"({_X}) => ({_Y}) <int64[1] a = {{0}}> {{ m = ReduceL2<keepdims=1>(x, a) y = Div(x, m) }}",
    "batch norm L1": f"({_X}) => ({_Y}) <int64[1] a = {{0}}> {{ m = ReduceL1<keepdims=1>(x, a) y = Div(x, m) }}",
    "batch log of sum": f"({_X}) => ({_Y}) <int64[1] a = {{0}}>"
    " { m = ReduceLogSumExp<keepdims=1>(x, a) y = Sub(x, m) }",
    "batch square sum": f"({_X}) => ({_Y}) <int64[1] a = {{0}}>"
    " { m = ReduceSumSquare<keepdims=1>(x, a) y = Add(x, m) }",
    "mean of all": f"({_X}) => ({_Y}) {{ m = ReduceMean<keepdims=1>(x) y = Sub(x, m) }}",
    "maximum of all": f"({_X}) => ({_Y}) {{ m = ReduceMax<keepdims=0>(x) y = Div(x, m) }}",
    "softmax over rows": f"({_X}) => ({_Y}) {{ y = Softmax<axis=0>(x) }}",
    "log softmax over rows": f"({_X}) => ({_Y}) {{ y = LogSoftmax<axis=0>(x) }}",
    "hardmax over rows": f"({_X}) => ({_Y}) {{ y = Hardmax<axis=0>(x) }}",
    "L2 over rows": f"({_X}) => ({_Y}) {{ y = LpNormalization<axis=0>(x) }}",
    "batch statistics": f"({_X}) => ({_Y}) {{ y = MeanVarianceNormalization<axes=[0]>(x) }}",
    "cumulative sum": f"({_X}) => ({_Y}) <int64 a = {{0}}> {{ y = CumSum(x, a) }}",
    "reverse cumulative sum": f"({_X}) => ({_Y}) <int64 a = {{0}}> {{ y = CumSum<reverse=1>(x, a) }}",
    "exclusive cumulative sum": f"({_X}) => ({_Y}) <int64 a = {{0}}> {{ y = CumSum<exclusive=1>(x, a) }}",
    "sort": f"({_X}) => ({_Y}) <int64[1] z = {{0}}, int64[1] o = {{1}}>"
    " { s = Shape(x) n = Slice(s, z, o) y, i = TopK<axis=0>(x, n) }",
    "ascending sort": f"({_X}) => ({_Y}) <int64[1] z = {{0}}, int64[1] o = {{1}}>"
    " { s = Shape(x) n = Slice(s, z, o) y, i = TopK<axis=0, largest=0>(x, n) }",
    "sort of a vector": "(float[N] x) => (float[N] y) { n = Shape(x) y, i = TopK<axis=0>(x, n) }",
    "order of rows": "(float[N] x) => (int64[N] i) { n = Shape(x) y, i = TopK<axis=0>(x, n) }",
    "reshape to a row": f"({_X}) => (float[N, 4] y) <int64[2] s = {{1, -1}}, int64[2] t = {{-1, 4}}>"
    " { r = Reshape(x, s) m = Softmax(r) y = Reshape(m, t) }",
    "reshape to a constant": f"({_X}) => (float[N, 4] y) <int64[2] s = {{1, 4}}> {{ y = Reshape(x, s) }}",
    "reshape to two rows": f"({_X}) => (float[M, 2] y) <int64[2] s = {{-1, 2}}> {{ y = Reshape(x, s) }}",
    "flattened": "(float[N, 4] x) => (float[M] y) <int64[1] s = {-1}> { y = Reshape(x, s) }",
    "transposed": "(float[N, 4] x) => (float[M, K] y) { y = Transpose(x) }",
    "gram matrix": "(float[N, 4] x) => (float[N, M] y) { t = Transpose(x) y = MatMul(x, t) }",
    "attention over rows": f"({_X}) => ({_Y})"
    " { t = Transpose(x) s = MatMul(x, t) p = Softmax(s) y = MatMul(p, x) }",
    "covariance": "(float[N, 4] x) => (float[4, 4] y) { t = Transpose(x) y = MatMul(t, x) }",
    "first row": f"({_X}) => ({_Y}) <int64[1] z = {{0}}> {{ r = Gather<axis=0>(x, z) y = Add(x, r) }}",
    "last row": f"({_X}) => ({_Y}) <int64[1] z = {{-1}}> {{ r = Gather<axis=0>(x, z) y = Sub(x, r) }}",
    "first row alone": "(float[N, 4] x) => (float[M, 4] y) <int64[1] z = {0}> { y = Gather<axis=0>(x, z) }",
    "reversed rows": f"({_X}) => ({_Y}) <int64[1] b = {{-1}}, int64[1] e = {{-1000}}, int64[1] a = {{0}},"
    " int64[1] s = {-1}> { y = Slice(x, b, e, a, s) }",
    "every other row": "(float[N, 4] x) => (float[M, 4] y) <int64[1] b = {0}, int64[1] e = {1000},"
    " int64[1] a = {0}, int64[1] s = {2}> { y = Slice(x, b, e, a, s) }",
    "all but the first row": "(float[N, 4] x) => (float[M, 4] y) <int64[1] b = {1}, int64[1] e = {1000},"
    " int64[1] a = {0}> { y = Slice(x, b, e, a) }",
    "padded rows": "(float[N, 4] x) => (float[M, 4] y) <int64[4] p = {1, 0, 0, 0}> { y = Pad(x, p) }",
    "two copies": "(float[N, 4] x) => (float[M, 4] y) { y = Concat<axis=0>(x, x) }",
    "tiled rows": "(float[N, 4] x) => (float[M, 4] y) <int64[2] r = {2, 1}> { y = Tile(x, r) }",
    "number of rows": f"({_X}) => ({_Y}) <int64[1] z = {{0}}, int64[1] o = {{1}}>"
    " { s = Shape(x) n = Slice(s, z, o) f = Cast<to=1>(n) y = Div(x, f) }",
    "number of elements": f"({_X}) => ({_Y}) {{ n = Size(x) f = Cast<to=1>(n) y = Div(x, f) }}",
    "row positions": f"({_X}) => ({_Y}) <int64 z = {{0}}, int64 o = {{1}}, int64[1] a = {{1}}, int64[1] f = {{0}},"
    " int64[1] g = {1}> { s = Shape(x) n = Slice(s, f, g) k = Squeeze(n) r = Range(z, k, o) c = Cast<to=1>(r)"
    " u = Unsqueeze(c, a) y = Add(x, u) }",
    "scale by the largest": "(float[N, 4] x) => (uint8[N, 4] y) { y, s, z = DynamicQuantizeLinear(x) }",
    "largest row": "(float[N, 4] x) => (int64[M, 4] y) { y = ArgMax<axis=0>(x) }",
    "distinct rows": "(float[N] x) => (float[M] y) { y, i, j, c = Unique<sorted=1>(x) }",
    "nonzero positions": "(float[N, 4] x) => (int64[M, K] y) { y = NonZero(x) }",
    "kept rows": "(float[N, 4] x) => (float[M, 4] y) <int64[1] a = {1}, float z = {0.0}>"
    " { s = ReduceSum<keepdims=0>(x, a) b = Greater(s, z) y = Compress<axis=0>(x, b) }",
    "recurrent over rows": "(float[N, 1, 2] x) => (float[N, 1, 1, 2] y) <float[1, 2, 2] w = {1, 2, 3, 4},"
    " float[1, 2, 2] r = {0.5, 0.1, 0.2, 0.3}> { y = RNN<hidden_size=2>(x, w, r) }",
    "convolution over rows": "(float[N, 1, 4] x) => (float[N, 1, 4] y) <float[1, 1, 3] w = {1, 2, 3},"
    " int64[3] p = {1, 1, -1}, int64[3] q = {-1, 1, 4}>"
    " { f = Reshape(x, p) c = Conv<pads=[1, 1]>(f, w) y = Reshape(c, q) }",
    "a condition on all rows": f"({_X}) => ({_Y}) <float z = {{3.0}}>"
    " { s = ReduceSum<keepdims=0>(x) b = Greater(s, z) n = Neg(x) y = Where(b, x, n) }",
    "a rare condition on all rows": f"({_X}) => ({_Y}) <float z = {{2.5}}>"
    " { s = ReduceMax<keepdims=0>(x) b = Greater(s, z) n = Neg(x) y = Where(b, n, x) }",
    "random numbers": f"({_X}) => ({_Y}) {{ r = RandomUniformLike(x) y = Add(x, r) }}",
    "dropout": f"({_X}) => ({_Y}) <float r = {{0.5}}, bool t = {{1}}> {{ y = Dropout(x, r, t) }}",
    "two inputs crossed": "(float[N, 4] x, float[N, 4] z) => (float[N, M] y) { t = Transpose(z) y = MatMul(x, t) }",
    "sum of another input": "(float[N, 4] x, float[N, 4] z) => (float[N, 4] y) <int64[1] a = {0}>"
    " { s = ReduceSum<keepdims=1>(z, a) y = Add(x, s) }",
    "an index over rows": "(float[N, 4] x, int64[N] i) => (float[N, 4] y) { y = Gather<axis=0>(x, i) }",
}  # fmt: skip
"""Models in the text form of onnx, without the heading, by what makes them unfit."""

HEAD = '<ir_version: 9, opset_import: ["": 18]> net '


def hostile(name: str) -> onnx.ModelProto:
    """Return a model that must not be served merged."""
    return onnx.parser.parse_model(HEAD + HOSTILE[name])


def differing_output(session: Session, seeds: int = 6) -> str:
    """Return an output whose rows differ merged and apart on inputs of other seeds; empty if there is none.

    The tolerance is ten times that of the proof: an output that differs less is not wrong. Where a row alone has no
    result, such as a division by zero, the merged call must have none: the server then computes the rows apart.

    Args:
        session: The session.
        seeds: The number of drawn batches.
    """
    interface = Interface(session.snapshot())
    required = [tensor for tensor in interface.inputs.values() if not tensor.is_optional and tensor.shape]
    symbols = {size if isinstance(size := tensor.shape[0], str) else f"{tensor.name}[0]" for tensor in required}
    base, names = drawn_feeds(session.snapshot().model, session, {})
    sizes = dict.fromkeys(names, 6)
    for seed in range(seeds):
        rows = 2 + seed
        feeds, _ = drawn_feeds(
            session.snapshot().model, session, {**sizes, **dict.fromkeys(symbols & names.keys(), rows)}
        )
        feeds = {name: _changed(np.asarray(array), rows, seed) for name, array in feeds.items() if name in base}
        merged = _results(session, feeds)
        apart = [_results(session, {n: a[i : i + 1] for n, a in feeds.items()}) for i in range(rows)]
        failed = [row for row in apart if isinstance(row, SardonyxError)]
        if isinstance(merged, SardonyxError) or failed:
            if isinstance(merged, SardonyxError) and failed:
                continue
            return f"{merged}" if not failed else f"merged rows have a result, one alone has none: {failed[0]}"
        for index, name in enumerate(interface.outputs):
            parts = [row[index] for row in apart if not isinstance(row, SardonyxError)]
            if merged[index].shape[0] != rows or any(part.shape[1:] != merged[index].shape[1:] for part in parts):
                return f"{name}: sizes"
            if not _agree(merged[index], np.concatenate(parts)):
                return f"{name}: values"
    return ""


def _results(session: Session, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray] | SardonyxError:
    try:
        return list(session.run(None, feeds))
    except SardonyxError as error:
        return error


def _changed(array: np.ndarray, rows: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed + 1000)
    if array.shape[0] != rows:
        array = np.repeat(array[:1], rows, axis=0)
    if array.dtype.kind != "f":
        return rng.permuted(array, axis=0)
    return (array * rng.uniform(0.3, 3.0, (rows, *[1] * (array.ndim - 1)))).astype(array.dtype)


def _agree(merged: np.ndarray, apart: np.ndarray) -> bool:
    if merged.dtype.kind != "f":
        return bool((merged == apart).mean() > 0.999) if merged.size else True
    finite = np.isfinite(apart)
    scale = float(np.abs(apart[finite]).max(initial=0.0))
    return bool(np.allclose(merged, apart, rtol=0, atol=1e-4 * scale + 1e-30, equal_nan=True))


def public_models(folders: Mapping[str, Path]) -> dict[str, Path]:
    """Return the model files of folders, by a name that tells the folder."""
    return {
        f"{label}/{path.stem}": path
        for label, folder in sorted(folders.items())
        for path in sorted(folder.glob("*.onnx"))
    }


def with_open_rows(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """Return a copy whose inputs and outputs have an open first size; None if a value has no axes."""
    opened = onnx.ModelProto.FromString(model.SerializeToString())
    constants = {tensor.name for tensor in opened.graph.initializer}
    for value in (*(value for value in opened.graph.input if value.name not in constants), *opened.graph.output):
        tensor = value.type.tensor_type
        if value.type.WhichOneof("value") != "tensor_type" or not tensor.shape.dim:
            return None
        tensor.shape.dim[0].dim_param = "rows_of_requests"
    del opened.graph.value_info[:]
    return opened
