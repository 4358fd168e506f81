"""Models with findings: one for each code."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, parser

HEAD = '<ir_version: 10, opset_import: ["" : 21]>\n'
WITH_FUNCTIONS = '<ir_version: 10, opset_import: ["" : 21, "l" : 1]>\n'
FUNCTION = '<domain: "l", opset_import: ["" : 21, "l" : 1]>\n'
IF = """g (float[2] x, bool c) => (float[2] y) {{ {before}
    y = If (c) <then_branch = t () => (float[2] {out}) {{ {then} }},
                else_branch = e () => (float[2] q) {{ q = Abs (x) }}> }}"""


def text(body: str, head: str = HEAD) -> onnx.ModelProto:
    return parser.parse_model(head + body)


def branch(then: str, out: str, before: str = "") -> onnx.ModelProto:
    return text(IF.format(then=then, out=out, before=before))


def relu() -> onnx.ModelProto:
    return text("g (float[2] x) => (float[2] y) { y = Relu (x) }")


def edited(model: onnx.ModelProto, edit: Callable[[onnx.ModelProto], object]) -> onnx.ModelProto:
    edit(model)
    return model


def weighted(
    array: np.ndarray | onnx.TensorProto, node: str = "y = Add (x, w)", ir_version: int = 10
) -> onnx.ModelProto:
    model = text(f"g (float[2] x) => (y) {{ {node} }}")
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    model.graph.output[0].type.tensor_type.shape.SetInParent()
    model.graph.output[0].type.tensor_type.shape.dim.add()
    tensor = array if isinstance(array, onnx.TensorProto) else numpy_helper.from_array(array, "w")
    model.graph.initializer.append(tensor)
    model.ir_version = ir_version
    return model


def tensor(**fields: object) -> onnx.TensorProto:
    return TensorProto(**{"name": "w", "data_type": TensorProto.FLOAT, "dims": [2], **fields})


def external(location: str, **entries: str) -> onnx.TensorProto:
    proto = tensor(data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **entries}.items():
        proto.external_data.add(key=key, value=value)
    return proto


def calls(depth: int, times: int = 1) -> onnx.ModelProto:
    """Return a model with a chain of functions; each function calls the next ``times`` times."""
    functions = [FUNCTION + "f0 (x) => (y) { y = Relu (x) }"]
    for level in range(1, depth):
        steps = [f"t{i + 1} = l.f{level - 1} (t{i})" for i in range(times)]
        body = " ".join(["t0 = Identity (x)", *steps, f"y = Identity (t{times})"])
        functions.append(FUNCTION + f"f{level} (x) => (y) {{ {body} }}")
    return text(f"g (float[2] x) => (float[2] y) {{ y = l.f{depth - 1} (x) }}\n" + "\n".join(functions), WITH_FUNCTIONS)


def function(body: str, call: str = "y = l.F (x)", signature: str = "F (x) => (y)") -> onnx.ModelProto:
    return text(f"g (float[2] x) => (float[2] y) {{ {call} }}\n{FUNCTION}{signature} {{ {body} }}", WITH_FUNCTIONS)


def nested(depth: int) -> onnx.ModelProto:
    model = onnx.ModelProto(ir_version=10, opset_import=[helper.make_opsetid("", 21)])
    graph = model.graph
    for level in range(depth):
        node = graph.node.add(op_type="If", name=f"If_{level}")
        attribute = node.attribute.add(name="then_branch", type=onnx.AttributeProto.GRAPH)
        graph = attribute.g
    return model


def not_text() -> onnx.ModelProto:
    return onnx.ModelProto.FromString(relu().SerializeToString().replace(b"Relu", b"Re\xffu"))


def opaque() -> onnx.ModelProto:
    return edited(relu(), lambda model: model.graph.input[0].type.opaque_type.SetInParent())


def sparse() -> onnx.ModelProto:
    values, indices = tensor(dims=[1], float_data=[1.0]), numpy_helper.from_array(np.array([5], np.int64))
    bad = helper.make_sparse_tensor(values, indices, [2])
    return edited(relu(), lambda model: model.graph.sparse_initializer.append(bad))


def squares(epsilon: str = "1e-5") -> onnx.ModelProto:
    return text(
        """g (float[2, 8] x) => (float[2, 8] y) {
            e = Constant <value_float = 1e-5> () two = Constant <value_float = 2.0> ()
            m = ReduceMean <axes = [-1]> (x) d = Sub (x, m) s = Pow (d, two) v = ReduceMean <axes = [-1]> (s)
            a = Add (v, e) r = Sqrt (a) y = Div (d, r) }""",
        '<ir_version: 8, opset_import: ["" : 13]>\n',
    )


def unused_body() -> onnx.ModelProto:
    return text("g (float[2] x) => (float[2] y) { y = Relu (x) z = Abs (x) }")


def batch(size: int) -> onnx.ModelProto:
    return text(f"g (float[{size}, 3] x) => (float[{size}, 3] y) {{ y = Relu (x) }}")


EXAMPLES: dict[str, tuple[Callable[[], onnx.ModelProto], str]] = {
    "ir-version": (lambda: edited(relu(), lambda m: setattr(m, "ir_version", 99)), "ir_version"),
    "opset-missing": (lambda: text("g (float[2] x) => (float[2] y) { y = other.F (x) }"), "node other::F(y)"),
    "opset-duplicate": (
        lambda: edited(relu(), lambda m: m.opset_import.append(helper.make_opsetid("ai.onnx", 13))),
        "opset import ai.onnx",
    ),
    "opset-redundant": (
        lambda: edited(relu(), lambda m: m.opset_import.append(helper.make_opsetid("", 21))),
        "opset import ai.onnx",
    ),
    "opset-unknown": (lambda: edited(relu(), lambda m: setattr(m.opset_import[0], "version", 99)), "opset import"),
    "nesting-too-deep": (lambda: nested(5000), "If_33"),
    "text-encoding": (not_text, "main graph"),
    "metadata-duplicate": (
        lambda: edited(relu(), lambda m: m.metadata_props.extend([onnx.StringStringEntryProto(key="k")] * 2)),
        "model",
    ),
    "function-duplicate": (
        lambda: edited(function("y = Relu (x)"), lambda m: m.functions.append(m.functions[0])),
        "function l::F",
    ),
    "function-recursive": (lambda: function("y = l.F (x)"), "function l::F"),
    "function-depth": (lambda: calls(5000), "function l::f4999"),
    "function-expansion": (lambda: calls(50, times=4), "function l::f"),
    "function-undefined": (lambda: function("y = Relu (x)", "y = l.G (x)"), "node l::G(y)"),
    "attribute-reference": (
        lambda: function("y = LeakyRelu <alpha: float = @slope> (x)"),
        "function l::F, node LeakyRelu(y)",
    ),
    "attribute-range": (
        lambda: text("g (float[2, 3] x, int64[2, 1] i) => (y) { y = GatherND <batch_dims = -2> (x, i) }"),
        "node GatherND(y)",
    ),
    "graph-cycle": (
        lambda: text("g (float[2] x) => (float[2] y) { a = Add (x, b) b = Relu (a) y = Abs (b) }"),
        "Add(a)",
    ),
    "graph-unsorted": (lambda: text("g (float[2] x) => (float[2] y) { y = Relu (a) a = Abs (x) }"), "node Relu(y)"),
    "graph-name": (lambda: edited(relu(), lambda m: m.graph.ClearField("name")), "model"),
    "value-undefined": (
        lambda: branch("p = Add (x, nothing)", "p"),
        "If(y).then_branch, node Add(p), tensor 'nothing'",
    ),
    "value-duplicate": (lambda: branch("w = Relu (x)", "w", before="w = Abs (x)"), "node Relu(w), tensor 'w'"),
    "name-shadowed": (
        lambda: edited(
            branch("p = Add (x, w)", "p", before="w = Abs (x)"),
            lambda m: m.graph.node[1].attribute[0].g.initializer.append(numpy_helper.from_array(np.ones(2, "f"), "w")),
        ),
        "If(y).then_branch, tensor 'w'",
    ),
    "output-undefined": (lambda: branch("p = Relu (x)", "x"), "If(y).then_branch, tensor 'x'"),
    "output-duplicate": (lambda: edited(relu(), lambda m: m.graph.output.append(m.graph.output[0])), "tensor 'y'"),
    "value-type": (lambda: edited(relu(), lambda m: m.graph.output[0].ClearField("type")), "tensor 'y'"),
    "opaque-type": (opaque, "tensor 'x'"),
    "dimension-invalid": (
        lambda: edited(relu(), lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[0], "dim_value", -1)),
        "tensor 'x'",
    ),
    "dimension-overflow": (lambda: weighted(tensor(dims=[2**62, 2**62])), "tensor 'w'"),
    "initializer-not-input": (lambda: weighted(np.ones(2, "f"), ir_version=3), "tensor 'w'"),
    "body-input-weight": (
        lambda: edited(
            text(
                """g (int64 n, bool c, float[2] x) => (float[2] y) {
                    y = Loop (n, c, x) <body = b (int64 i, bool k, float[2] s) => (bool k2, float[2] s2)
                    { k2 = Identity (k) s2 = Relu (s) }> }"""
            ),
            lambda m: m.graph.node[0].attribute[0].g.initializer.append(numpy_helper.from_array(np.ones(2, "f"), "s")),
        ),
        "Loop(y).body, tensor 's'",
    ),
    "node-operator": (lambda: edited(relu(), lambda m: m.graph.node[0].ClearField("op_type")), "node (y)"),
    "operator-unknown": (lambda: branch("p = Nope (x)", "p"), "If(y).then_branch, node Nope(p)"),
    "operator-deprecated": (
        lambda: text("g (float[2] x) => (float[2] y) { y = Scatter (x, x, x) }"),
        "node Scatter(y)",
    ),
    "operator-custom": (
        lambda: text("g (float[2] x) => (float[2] y) { y = my.Op (x) }", '<ir_version: 10, opset_import: ["my" : 1]>'),
        "operator my::Op",
    ),
    "arity": (lambda: text("g (float[2] x) => (float[2] y) { y = Relu (x, x) }"), "node Relu(y)"),
    "input-missing": (
        lambda: edited(
            text("g (float[2] x) => (float[2] y) { y = Add (x, x) }"),
            lambda m: m.graph.node[0].input.__setitem__(1, ""),
        ),
        "node Add(y)",
    ),
    "attribute-unknown": (lambda: function("y = Relu <foo = 1> (x)"), "function l::F, node Relu(y)"),
    "attribute-type": (
        lambda: text("g (float[2] x) => (float[2] y) { y = LeakyRelu <alpha = 1> (x) }"),
        "node LeakyRelu(y)",
    ),
    "attribute-missing": (lambda: text("g (float[2] x) => (float[2] y) { y = Cast (x) }"), "node Cast(y)"),
    "attribute-duplicate": (
        lambda: edited(
            text("g (float[2] x) => (float[2] y) { y = Elu <alpha = 1.0> (x) }"),
            lambda m: m.graph.node[0].attribute.append(m.graph.node[0].attribute[0]),
        ),
        "node Elu(y)",
    ),
    "type-mismatch": (
        lambda: text("g (float[2] x, int64[2] z) => (float[2] y) { a = Abs (x) y = Add (a, z) }"),
        "node Add(y)",
    ),
    "shape-mismatch": (lambda: text("g (float[2] x) => (float[3] y) { y = Relu (x) }"), "node Relu(y)"),
    "inference": (
        lambda: text("g (float[1, 1, 4, 4] x) => (float[1, 1, 4, 4] y) { y = MaxPool <kernel_shape = [0, 0]> (x) }"),
        "node MaxPool(y)",
    ),
    "tensor-type": (lambda: weighted(tensor(data_type=99)), "tensor 'w'"),
    "tensor-content": (lambda: weighted(tensor(raw_data=b"12345678", float_data=[1, 2])), "tensor 'w'"),
    "tensor-size": (lambda: weighted(tensor(raw_data=b"1234567890")), "tensor 'w'"),
    "sparse-tensor": (sparse, "tensor 'w'"),
    "tensor-too-large": (
        lambda: edited(
            text("g (float[2] x) => (float[?] y) { y = ConstantOfShape (s) }"),
            lambda m: m.graph.initializer.append(numpy_helper.from_array(np.array([2**21, 2**21], np.int64), "s")),
        ),
        "node ConstantOfShape(y)",
    ),
    "ir-too-old": (lambda: edited(function("y = Relu (x)"), lambda m: setattr(m, "ir_version", 7)), "ir_version"),
    "node-duplicate": (lambda: text("g (float[2] x) => (float[2] y) { [n] a = Abs (x) [n] y = Relu (a) }"), "node n"),
    "unused-input": (lambda: text("g (float[2] x, float[2] z) => (float[2] y) { y = Relu (x) }"), "tensor 'z'"),
    "unused-weight": (lambda: weighted(np.ones(2, "f"), "y = Relu (x)"), "tensor 'w'"),
    "unused-node": (unused_body, "node Abs(z)"),
    "attribute-ignored": (
        lambda: text("g (float[2] x) => (float[2] y) { y = LayerNormalization <epsion = 0.1> (x, x) }"),
        "node LayerNormalization(y)",
    ),
    "unused-function": (lambda: function("y = Relu (x)", "y = Abs (x)"), "function l::F"),
    "weight-nan": (lambda: weighted(np.array([1, np.nan], "f")), "tensor 'w'"),
    "weight-inf": (lambda: weighted(np.array([1, -np.inf], "f")), "tensor 'w'"),
    "weight-denormal": (lambda: weighted(np.array([1, 1e-40], "f")), "tensor 'w'"),
    "batch-baked": (lambda: batch(1), "tensor 'x'"),
    "opset-old": (squares, "node Sqrt(r)"),
    "int64-fits-int32": (lambda: weighted(np.array([0, 1]), "y = Gather (x, w)"), "tensor 'w'"),
    "float64": (lambda: text("g (double[2] x) => (double[2] y) { y = Relu (x) }"), "tensor 'x'"),
    "float16-overflow": (lambda: weighted(np.array([1, -65504], "f")), "tensor 'w'"),
    "duplicate-weight": (
        lambda: edited(
            weighted(np.ones(2, "f"), "t = Add (x, w) y = Mul (t, v)"),
            lambda m: m.graph.initializer.append(numpy_helper.from_array(np.ones(2, "f"), "v")),
        ),
        "tensor 'w'",
    ),
    "weight-is-input": (
        lambda: edited(
            weighted(np.ones(2, "f")),
            lambda m: m.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [2])),
        ),
        "tensor 'w'",
    ),
    "training-mode": (
        lambda: edited(
            text("g (float[2] x) => (float[2] y) { y = Dropout (x, , mode) }"),
            lambda m: m.graph.initializer.append(numpy_helper.from_array(np.array(True), "mode")),
        ),
        "node Dropout(y)",
    ),
}
"""Code → a model with the finding, and a part of the location that the finding must name."""
