"""Operators of ``com.microsoft`` equal ONNX Runtime, eagerly and traced at open sizes.

Forms that ONNX Runtime refuses on CPU are compared with compositions in ``test_microsoft_compositions.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as runtime

from sardonyx.compat.onnxruntime import __version__ as INTERFACE
from sardonyx.errors import InvalidModelError, SardonyxError, ShapeError, TypeMismatchError, UnsupportedError
from sardonyx.ops.contributed import CONTRIBUTED
from tests.ops.agreement import assert_equal, by_onnxruntime, by_session, model_of, release, traced
from tests.ops.microsoft_cases import CASES, Case, f, i32, positive, q, s


def model(case: Case) -> Any:
    return model_of(case.name, case.arrays, opset=1, outputs=case.outputs, domain="com.microsoft", **case.attributes)


def with_sizes(case: Case) -> Any:
    """Return the model with declared input sizes, which some rules of ONNX Runtime need."""
    proto = model(case)
    for info, array in zip(proto.graph.input, [a for a in case.arrays if a is not None], strict=True):
        for dim, size in zip(info.type.tensor_type.shape.dim, array.shape, strict=True):
            dim.dim_value = size
    return proto


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_onnx_runtime_eagerly_and_traced(case: Case) -> None:
    actual = by_session(model(case), case.arrays)
    for ours, theirs in zip(actual, by_onnxruntime(with_sizes(case), case.arrays), strict=True):
        if np.issubdtype(ours.dtype, np.floating):
            assert_equal([ours], [theirs], rtol=case.tolerance, atol=case.tolerance)
        elif case.apart:
            assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
            assert np.abs(ours.astype(int) - theirs).max() <= 1, case.apart
        else:
            assert_equal([ours], [theirs])
    if case.open is not None:
        options = {**case.attributes, "opset": 1, "outputs": case.outputs, "domain": "com.microsoft"}
        assert_equal(traced(case.name, case.arrays, opened(case), **options), actual)


def opened(case: Case) -> list[str | None]:
    """Return the sizes of the inputs of a case, with symbols for open ones."""
    shapes: list[str | None] = []
    for i, array in enumerate(case.arrays):
        symbols = {} if i in case.fixed or case.open is None else case.open
        shapes.append(None if array is None else " ".join(symbols.get(size, str(size)) for size in array.shape))
    return shapes


def test_the_type_table_equals_the_schemas_of_onnx_runtime() -> None:
    schemas = {(schema.domain, schema.name): schema for schema in runtime.get_all_operator_schema()}
    for domain, operators in CONTRIBUTED.items():
        for name, text in operators.items():
            schema = schemas[domain, name]
            allowed = {c.type_param_str: {t[7:-1] for t in c.allowed_type_strs} for c in schema.type_constraints}
            words, *variables = text.split("; ")
            kinds = words.removesuffix("...").split()
            declared = {key: set(types.split()) for key, types in (variable.split(": ") for variable in variables)}
            expected = [i.typeStr if i.typeStr in allowed else i.typeStr[7:-1] for i in schema.inputs]
            if release(ort.__version__) < release(INTERFACE):
                kinds = kinds[: len(expected)]  # later releases add inputs at the end
            assert (kinds, declared) == (expected, {key: allowed[key] for key in kinds if key in allowed}), name


X, HALF = q(2, 4, 6, 8), s(0.5)
ZERO = np.array(3, np.uint8)
REAL = X.astype(np.float32)
FIVE = f(2, 3, 64)

REFUSED: list[tuple[str, list[Any], dict[str, Any], type[SardonyxError]]] = [
    ("QLinearAdd", [REAL, HALF, ZERO, REAL, HALF, ZERO, HALF, ZERO], {}, TypeMismatchError),
    ("QLinearAdd", [X, HALF, ZERO, X.astype(np.int8), HALF, ZERO, HALF, ZERO], {}, TypeMismatchError),
    ("QLinearAdd", [X, HALF, ZERO, X[:, :3], HALF, ZERO, HALF, ZERO], {}, ShapeError),
    ("QLinearAdd", [X, positive(8), ZERO, X, HALF, ZERO, HALF, ZERO], {}, ShapeError),
    ("QLinearAdd", [X, HALF, ZERO, X, HALF], {}, InvalidModelError),
    ("QLinearConcat", [HALF, ZERO, X, HALF], {"axis": 1}, InvalidModelError),
    ("QLinearConcat", [HALF, ZERO, X, HALF, ZERO], {}, InvalidModelError),
    ("QLinearSoftmax", [X, HALF, ZERO, HALF, ZERO], {"opset_": 0}, InvalidModelError),
    ("QLinearConv", [X, HALF, ZERO, q(4, 3, 2, 2), HALF, ZERO, HALF, ZERO], {}, ShapeError),
    ("QLinearAveragePool", [X[0, 0], HALF, ZERO, HALF, ZERO], {"kernel_shape": [2]}, ShapeError),
    ("QGemm", [X, HALF, ZERO, X, HALF, ZERO], {}, ShapeError),
    ("MatMulNBits", [f(2, 64), q(6, 4, 8), f(6, 4)], {"K": 64, "N": 6, "block_size": 16, "bits": 3}, UnsupportedError),
    ("MatMulBnb4", [f(2, 64), q(192), f(24)], {"K": 64, "N": 6, "block_size": 16, "quant_type": 2}, UnsupportedError),
    ("MatMulBnb4", [f(2, 64), q(100), f(24)], {"K": 64, "N": 6, "block_size": 16, "quant_type": 1}, ShapeError),
    ("MatMulBnb4", [f(2, 64), q(192), f(23)], {"K": 64, "N": 6, "block_size": 16, "quant_type": 1}, ShapeError),
    ("MatMulNBits", [f(2, 64), q(6, 4, 7), f(6, 4)], {"K": 64, "N": 6, "block_size": 16}, ShapeError),
    ("MatMulNBits", [f(2, 63), q(6, 4, 8), f(6, 4)], {"K": 64, "N": 6, "block_size": 16}, ShapeError),
    ("MatMulNBits", [f(2, 64), q(6, 4, 8), f(6, 3)], {"K": 64, "N": 6, "block_size": 16}, ShapeError),
    ("GatherBlockQuantized", [q(8, 24), i32(0), f(8, 2)], {"block_size": 16}, ShapeError),
    ("Attention", [FIVE, f(64, 190)], {"num_heads": 4}, ShapeError),
    ("Attention", [FIVE, f(64, 192), None, np.ones((2, 4), np.int32)], {"num_heads": 4}, ShapeError),
    ("Attention", [FIVE, f(64, 192)], {"num_heads": 4, "do_rotary": 1}, UnsupportedError),
    ("MultiHeadAttention", [FIVE, FIVE], {"num_heads": 4}, InvalidModelError),
    ("MultiHeadAttention", [FIVE, FIVE, FIVE], {"num_heads": 5}, ShapeError),
    ("MultiHeadAttention", [FIVE, FIVE, FIVE, f(100)], {"num_heads": 4}, ShapeError),
    ("GroupQueryAttention", [FIVE, FIVE, FIVE, None, None, i32(2, 2), i32(3)],
     {"num_heads": 4, "kv_num_heads": 4, "do_rotary": 1}, InvalidModelError),
    ("GroupQueryAttention", [FIVE, FIVE, FIVE, None, None, i32(2, 2), i32(3)],
     {"num_heads": 4, "kv_num_heads": 4, "k_quant_type": "PER_TENSOR"}, UnsupportedError),
    ("GroupQueryAttention", [FIVE, FIVE, FIVE, None, None, i32(2, 2, 2), i32(3)],
     {"num_heads": 4, "kv_num_heads": 4}, ShapeError),
    ("RotaryEmbedding", [FIVE, np.array([[0, 1, 2]] * 2), f(20, 8), f(20, 7)], {}, ShapeError),
    ("MoE", [f(6, 8), f(6, 4), f(4, 16, 9), None, f(4, 8, 16)], {}, ShapeError),
    ("MoE", [f(6, 8), f(6, 4), f(4, 16, 8), None, f(4, 8, 16)], {"activation_type": "cosine"}, InvalidModelError),
    ("FusedConv", [f(1, 3, 8, 8), f(4, 3, 3, 3)], {"activation": "Cosine"}, InvalidModelError),
    ("BiasGelu", [f(2, 4), f(3)], {}, ShapeError),
    ("BiasSplitGelu", [f(), f()], {}, ShapeError),
    ("SkipLayerNormalization", [f(2, 3, 8), f(8), f(8)], {}, ShapeError),
    ("NhwcMaxPool", [REAL], {"kernel_shape": [2, 2]}, TypeMismatchError),
    ("Inverse", [f(3, 4)], {}, ShapeError),
]  # fmt: skip


@pytest.mark.parametrize(("name", "arrays", "attributes", "error"), REFUSED)
def test_mismatched_inputs_are_refused(
    name: str, arrays: list[Any], attributes: dict[str, Any], error: type[SardonyxError]
) -> None:
    with pytest.raises(error, match=name):
        by_session(model_of(name, arrays, opset=1, outputs=1, domain="com.microsoft", **attributes), arrays)
