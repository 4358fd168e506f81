"""Types of Core values."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest

from sardonyx.core.dim import Dim
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import MapType, OptionalType, SequenceType, TensorType, TupleType
from sardonyx.errors import UnsupportedError


@pytest.mark.parametrize("dtype", t.ALL_DTYPES)
def test_every_element_type_has_a_numpy_form_and_back(dtype: t.DType) -> None:
    if dtype != t.STRING:
        assert t.dtype_of(np.zeros(2, t.numpy_dtype(dtype))) == dtype


def test_every_element_type_of_onnx_is_supported() -> None:
    assert {dtype.name for dtype in t.ALL_DTYPES} == set(onnx.TensorProto.DataType.keys()) - {"UNDEFINED"}


def test_texts_and_byte_orders() -> None:
    assert t.dtype_of(np.array(["a"])) == t.STRING
    assert t.dtype_of(np.zeros(1, ">f4")) == t.FLOAT


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("datetime64[s]", "Convert the array to int64."),
        ("clongdouble", "Convert the array to complex128."),
        ("longdouble", "Convert the array to float64."),
        ("i4,f4", "Give an array of numbers or strings."),
    ],
)
def test_an_array_without_an_element_type_is_refused_with_the_closest_one(name: str, remedy: str) -> None:
    with pytest.raises(UnsupportedError, match="no element type") as refused:
        t.dtype_of(np.zeros(1, name))
    assert refused.value.remedy == remedy


def test_the_remedy_for_a_wrong_type_names_the_expected_one() -> None:
    remedies = {t.conversion_remedy(dtype) for dtype in (t.FLOAT, t.BFLOAT16, t.STRING)}
    assert remedies == {f"Convert the array to {name}." for name in ("float32", "bfloat16", "strings")}


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [(t.BFLOAT16, "float"), (t.DType.FLOAT4E2M1, "float"), (t.DType.INT2, "int"), (t.DType.UINT4, "uint"),
     (t.BOOL, "bool"), (t.COMPLEX64, "complex"), (t.STRING, "string")],
)  # fmt: skip
def test_kinds(dtype: t.DType, kind: str) -> None:
    assert t.kind(dtype) == kind
    assert t.is_float(dtype) == (kind == "float")
    assert t.is_integer(dtype) == (kind in ("int", "uint"))


def test_bytes_of_a_tensor() -> None:
    assert TensorType(t.FLOAT, (2, 3)).nbytes == 24
    assert TensorType(t.BFLOAT16, ()).nbytes == np.dtype(ml_dtypes.bfloat16).itemsize
    assert TensorType(t.FLOAT, (Dim.symbol("N"), 3)).nbytes is None
    assert TensorType(t.FLOAT, (Dim.symbol("N"), 0)).nbytes == 0
    assert TensorType(t.FLOAT, None).nbytes is None


def test_types_print_readably() -> None:
    tensor = TensorType(t.FLOAT, (Dim.symbol("N"), 4))
    assert str(tensor) == "float[N, 4]"
    assert str(TensorType(t.INT64, ())) == "int64[]"
    assert str(SequenceType(TensorType(t.STRING, None))) == "sequence(string)"
    assert str(OptionalType(tensor)) == "optional(float[N, 4])"
    assert str(MapType(t.INT64, TensorType(t.FLOAT, ()))) == "map(int64, float[])"
    assert str(TupleType((tensor, tensor))) == "(float[N, 4], float[N, 4])"
