"""Types not admitted by a definition: compute in a wider type and cast back, if values are equal."""

from __future__ import annotations

import onnx_ir as ir
from onnx.defs import OpSchema

from sardonyx.rewrite.opset.schemas import admits, element_text, parameter, schema_at, type_text
from sardonyx.rewrite.opset.site import Site

_T = ir.DataType

WIDER: dict[ir.DataType, tuple[ir.DataType, ...]] = {
    _T.BOOL: (_T.UINT8, _T.INT32, _T.FLOAT),
    _T.INT8: (_T.INT32, _T.INT64, _T.FLOAT, _T.DOUBLE),
    _T.UINT8: (_T.INT32, _T.UINT32, _T.INT64, _T.FLOAT, _T.DOUBLE),
    _T.INT16: (_T.INT32, _T.INT64, _T.FLOAT, _T.DOUBLE),
    _T.UINT16: (_T.INT32, _T.UINT32, _T.INT64, _T.FLOAT, _T.DOUBLE),
    _T.INT32: (_T.INT64, _T.DOUBLE),
    _T.UINT32: (_T.INT64, _T.UINT64, _T.DOUBLE),
    _T.FLOAT16: (_T.FLOAT, _T.DOUBLE),
    _T.BFLOAT16: (_T.FLOAT, _T.DOUBLE),
    _T.FLOAT: (_T.DOUBLE,),
    _T.FLOAT8E4M3FN: (_T.FLOAT16, _T.FLOAT),
    _T.FLOAT8E4M3FNUZ: (_T.FLOAT16, _T.FLOAT),
    _T.FLOAT8E5M2: (_T.FLOAT16, _T.FLOAT),
    _T.FLOAT8E5M2FNUZ: (_T.FLOAT16, _T.FLOAT),
    _T.FLOAT8E8M0: (_T.FLOAT,),
    _T.FLOAT4E2M1: (_T.FLOAT16, _T.FLOAT),
    _T.FLOAT6E2M3: (_T.FLOAT16, _T.FLOAT),
    _T.FLOAT6E3M2: (_T.FLOAT16, _T.FLOAT),
    _T.INT4: (_T.INT8, _T.INT32, _T.FLOAT),
    _T.UINT4: (_T.UINT8, _T.INT32, _T.FLOAT),
    _T.INT2: (_T.INT8, _T.INT32, _T.FLOAT),
    _T.UINT2: (_T.UINT8, _T.INT32, _T.FLOAT),
}
"""For each element type, the types that hold every value exactly, cheapest first."""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


MOVES = _names(
    "Abs ArgMax ArgMin Ceil Clip Compress Concat DepthToSpace Equal Expand Flatten Floor Gather GatherElements "
    "GatherND GlobalMaxPool Greater GreaterOrEqual Identity IsInf IsNaN Less LessOrEqual Max MaxPool MaxRoiPool "
    "MaxUnpool Min Neg NonZero Not OneHot Pad ReduceMax ReduceMin Relu Reshape ReverseSequence Round Scatter "
    "ScatterElements ScatterND Shape Sign Size Slice SpaceToDepth Split Squeeze Tile TopK Transpose Trilu Unique "
    "Unsqueeze Where"
)
"""Operators that copy, compare or negate values: any wider type gives the same result."""

RING = _names("Add CumSum Div Einsum Gemm MatMul Mod Mul PRelu ReduceProd ReduceSum ReduceSumSquare Sub Sum")
"""Operators whose integer results agree, after the cast back, if computed in a wider integer type."""

ROUNDS = _names(
    "Acos Acosh Asin Asinh Atan Atanh AveragePool BatchNormalization Conv ConvTranspose Cos Cosh DeformConv Det Elu "
    "Erf Exp GlobalAveragePool GlobalLpPool GRU GridSample HardSigmoid HardSwish InstanceNormalization LRN LSTM "
    "LeakyRelu Log LogSoftmax LpNormalization LpPool Mean MeanVarianceNormalization Mish Pow RNN Reciprocal ReduceL1 "
    "ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMean Resize RoiAlign Selu Sigmoid Sin Sinh Softmax Softplus Softsign "
    "Sqrt Tan Tanh ThresholdedRelu"
)
"""Floating-point operators: a wider type, rounded once, is at least as accurate."""


def _preserves(op_type: str, narrow: ir.DataType, wide: ir.DataType) -> bool:
    if op_type in MOVES:
        return True
    if op_type in RING:
        return narrow.is_floating_point() == wide.is_floating_point() and narrow != _T.BOOL
    return op_type in ROUNDS and narrow.is_floating_point()


def fit(site: Site, there: OpSchema) -> str | None:
    """Make the types of a node admissible under ``there`` by surrounding casts.

    Returns:
        None if all types are admitted now (unknown types count as admitted), else the reason.
    """
    node = site.node
    unfit: dict[str, tuple[ir.Value, str]] = {}
    for values, formals, output in ((node.inputs, there.inputs, False), (node.outputs, there.outputs, True)):
        for index, value in enumerate(values):
            text = None if value is None else type_text(value)
            formal = parameter(list(formals), index)
            if value is None or text is None or formal is None or admits(there, index, text, output=output):
                continue
            unfit.setdefault(formal.type_str, (value, text))
    if not unfit:
        return None
    chosen: dict[str, tuple[ir.DataType, ir.DataType]] = {}
    for parameter_name, (value, text) in unfit.items():
        wide = _choose(site, there, parameter_name, value)
        if wide is None or value.dtype is None:
            return f"{node.op_type} of the target opset does not accept type {text} of {value.name!r}"
        chosen[parameter_name] = (value.dtype, wide)
    _cast_around(site, there, chosen)
    return None


def _choose(site: Site, there: OpSchema, parameter_name: str, value: ir.Value) -> ir.DataType | None:
    """Return the cheapest wider type admitted by every argument of one type parameter."""
    dtype = value.dtype
    cast = schema_at("", "Cast", site.target)
    if dtype is None or cast is None or not isinstance(value.type, ir.TensorType):
        return None
    for wide in WIDER.get(dtype, ()):
        text = f"tensor({element_text(wide)})"
        legal = all(
            admits(there, index, text, output=output)
            for formals, output in ((there.inputs, False), (there.outputs, True))
            for index, formal in enumerate(formals)
            if formal.type_str == parameter_name
        )
        castable = all(admits(cast, 0, f"tensor({element_text(t)})") for t in (dtype, wide))
        if legal and castable and _preserves(site.node.op_type, dtype, wide):
            return wide
    return None


def _cast_around(site: Site, there: OpSchema, chosen: dict[str, tuple[ir.DataType, ir.DataType]]) -> None:
    def choice(formals: list[OpSchema.FormalParameter], index: int) -> tuple[ir.DataType, ir.DataType] | None:
        formal = parameter(formals, index)
        return None if formal is None else chosen.get(formal.type_str)

    inputs: list[ir.Value | None] = []
    for index, value in enumerate(site.node.inputs):
        types = choice(list(there.inputs), index)
        inputs.append(value if value is None or types is None else site.cast(value, types[1]))
    count, domain = len(site.node.outputs), site.node.domain
    results = site.emit_many(site.node.op_type, inputs, count, site.attributes(), domain=domain)
    outputs: list[ir.Value | None] = []
    for index, value in enumerate(results):
        types = choice(list(there.outputs), index)
        if types is not None:
            value.type = ir.TensorType(types[1])
            value = site.cast(value, types[0])
        outputs.append(value)
    site.replace(*outputs)
