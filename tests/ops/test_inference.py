"""Type inference: expressions, open ranks and axes, declarations of the file, and conflicts between both."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

import sardonyx
from sardonyx.core.ir.types import SequenceType, TensorType
from sardonyx.errors import ShapeError, TypeMismatchError
from sardonyx.model import load
from sardonyx.ops.inference import Inference, infer


def model(text: str, opset: int = 17) -> ir.Model:
    return load(onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": {opset}]> {text}'))


def values(inference: Inference) -> dict[str, str]:
    """Return the inferred types as text, by name, with ``?`` for run-time sizes."""
    texts = {}
    for value in inference.known:
        type = inference.type(value)
        if isinstance(type, TensorType) and type.shape is not None:
            sizes = ", ".join("?" if "%" in str(size) else str(size) for size in type.shape)
            texts[str(value.name)] = f"{type.dtype.name.lower()}[{sizes}]"
        else:
            texts[str(value.name)] = str(type)
    return texts


def inferred(text: str, opset: int = 17) -> dict[str, str]:
    return values(infer(model(text, opset)))


def test_shape_arithmetic_stays_an_expression() -> None:
    types = inferred("""g (float[N, 3, H, W] x) => (y) <int64[1] minus = {-1}, int64 zero = {0}, int64[1] axis = {0}> {
        s = Shape(x)  n = Gather(s, zero)  first = Unsqueeze(n, axis)  target = Concat<axis = 0>(first, minus)
        flat = Reshape(x, target)  two = Concat<axis = 1>(flat, flat)
        y = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x) }""")
    assert (types["flat"], types["two"]) == ("float[N, 3*H*W]", "float[N, 6*H*W]")
    assert types["y"] == "float[N, 3, H//2, W//2]"


BRANCHES = """g (bool c, float[2, 4] x{inputs}) => (y) <float[4, 5] w = {{{w}}}, int64[1] flat = {{-1}}> {{
    b = If<then_branch = one () => (p) {{ p = Identity(x) }},
           else_branch = two () => (q) {{ axes = Constant<value_ints = [0]>() q = Unsqueeze(x, axes) }}>(c)
    {nodes} }}"""


def branches(nodes: str, inputs: str = "") -> dict[str, str]:
    return inferred(BRANCHES.format(nodes=nodes, inputs=inputs, w=", ".join(["0"] * 20)))


def test_branches_of_different_rank_leave_the_rank_open() -> None:
    types = branches("y = Relu(b)")
    assert (types["p"], types["q"]) == ("float[2, 4]", "float[1, 2, 4]")
    assert (types["b"], types["y"]) == ("float", "float")


@pytest.mark.parametrize(
    ("nodes", "type"),
    [
        ("y = Reshape(b, flat)", "float[?]"),
        ("y = Shape(b)", "int64[?]"),
        ("y = Size(b)", "int64[]"),
        ("y = Cast<to = 7>(b)", "int64"),
        ("y = Gemm(b, w)", "float[?, 5]"),
        ("y = Add(b, b)", "float"),
        ("h = Cast<to = 10>(b) y = ReduceMax<keepdims = 0>(h)", "float16[]"),
    ],
)
def test_facts_common_to_all_ranks_are_known(nodes: str, type: str) -> None:
    assert branches(nodes)["y"] == type


@pytest.mark.parametrize(
    ("node", "type"),
    [
        ("CumSum(x, axis)", "float[N, 1, M]"),
        ("ReduceSum(x, axes)", "float[?, 1, ?]"),
        ("ReduceSum<keepdims = 0>(x, axes)", "float[?]"),
        ("Unsqueeze(x, axes)", "float[?, ?, ?, ?, ?]"),
        ("Squeeze(x, axes)", "float[?]"),
        ("Slice(x, starts, ends, axes, steps)", "float[?, ?, ?]"),
    ],
)
def test_facts_common_to_all_axes_are_known(node: str, type: str) -> None:
    types = inferred(f"""g (float[N, 1, M] x, int64 axis, int64[2] axes, int64[2] starts, int64[2] ends, int64[2] steps)
        => (y) {{ y = {node} }}""")
    assert types["y"] == type


def test_a_shape_of_unknown_length_leaves_the_element_type() -> None:
    assert inferred("g (float16[N] x, int64[K] s) => (y, z) { y = Reshape(x, s) z = Neg(y) }")["z"] == "float16"


def test_sizes_read_from_one_value_are_equal() -> None:
    inference = infer(
        model("g (float[N] x, float[N] w, int64[2] s) => (y) { a = Reshape(x, s) b = Reshape(w, s) y = Add(a, b) }")
    )
    types = {value.name: inference.type(value) for value in inference.known}
    assert types["a"] == types["b"] == types["y"]


def test_sizes_counted_from_two_values_differ() -> None:
    inference = infer(model("g (float[N] x, float[N] w) => (a, b) { a = NonZero(x) b = NonZero(w) }"))
    types = {value.name: inference.type(value) for value in inference.known}
    assert types["a"] != types["b"]


def test_a_constant_condition_selects_a_branch_and_both_are_inferred() -> None:
    types = inferred("""g (float[N] x) => (y) <bool c = {0}> {
        y = If<then_branch = a () => (p) { p = Neg(x) },
               else_branch = b () => (q) { q = Concat<axis = 0>(x, x) }>(c) }""")
    assert types["y"] == "float[2*N]"
    assert types["p"] == "float[N]"


def test_loops_scans_functions_and_sequences() -> None:
    types = inferred("""g (int64 n, bool c, float[N, 3] x) => (a, rows, s, e, f) {
        a, rows = Loop<body = b (int64 i, bool go, float[K, 3] v) => (bool more, float[L, 3] d, r) {
            more = Identity(go) d = Concat<axis = 0>(v, x) r = ReduceSum<keepdims = 0>(x) }>(n, c, x)
        s = SplitToSequence<axis = 0, keepdims = 0>(x)
        e = ConcatFromSequence<axis = 0, new_axis = 1>(s)
        f = Scan<num_scan_inputs = 1,
                 body = t (float[3] row) => (float[6] twice) { twice = Concat<axis = 0>(row, row) }>(x)
    }""")
    assert types["a"] == "float[?, 3]"
    assert types["rows"] == "float[?]"
    assert types["s"] == str(SequenceType(TensorType(ir.DataType.FLOAT, (3,))))
    assert types["e"] == "float[?, 3]"
    assert types["f"] == "float[N, 6]"


def test_a_function_is_inferred_at_its_call() -> None:
    types = values(infer(load(onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["": 17, "f": 1]>
        g (float[N] x) => (y) { a = f.twice(x) y = f.twice(a) }
        <domain: "f", opset_import: ["": 17]> twice (v) => (w) { w = Concat<axis = 0>(v, v) }"""))))  # fmt: skip
    assert (types["a"], types["y"]) == ("float[2*N]", "float[4*N]")


def test_a_declaration_names_a_run_time_size() -> None:
    types = inferred("g (float[N] x) => (int64[1, M] y, z) { y = NonZero(x) z = Concat<axis = 1>(y, y) }")
    assert (types["y"], types["z"]) == ("int64[1, M]", "int64[1, 2*M]")


@pytest.mark.parametrize("size", ["3", "N"])
def test_a_declaration_never_determines_a_run_time_size(size: str) -> None:
    types = inferred(f"g (float[N] x) => (int64[1, {size}] y, z) {{ y = NonZero(x) z = Concat<axis = 1>(y, y) }}")
    assert types["z"] == "int64[1, ?]"


def test_one_name_for_two_run_time_sizes_names_the_first_only() -> None:
    types = inferred("g (float[N] x) => (int64[1, M] y, int64[1, M] z) { y = NonZero(x) z = Concat<axis = 1>(y, y) }")
    assert (types["y"], types["z"]) == ("int64[1, M]", "int64[1, 2*M]")


def test_a_declaration_types_an_unknown_operator() -> None:
    types = values(infer(load(onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 17, "other": 1]>
        g (float[N] x) => (y) <float[N, 4] a> { a = other.Mystery(x) y = Transpose(a) }"""))))  # fmt: skip
    assert types["y"] == "float[4, N]"


@pytest.mark.parametrize("nodes", ["a = other.Mystery(x) y = NonZero(x)", "y = NonZero(x) a = other.Mystery(x)"])
def test_results_of_unknown_operators_and_computed_sizes_share_no_name(nodes: str) -> None:
    types = values(infer(load(onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["": 17, "other": 1]>
        g (float[N] x) => (a, y) <float[M] a, int64[1, M] y> {{ {nodes} }}"""))))  # fmt: skip
    assert sorted([types["a"], types["y"]]) in (["float[M]", "int64[1, ?]"], ["float[?]", "int64[1, M]"])


CONTRADICTION = "g (float[N, 3] x) => (float[3, 4] y) { [turn] y = Transpose(x) }"


def test_a_wrong_declaration_is_an_error_that_names_value_and_node() -> None:
    wrong = "g (float[2, 3] x) => (float[3, 4] y) { [turn] y = Transpose(x) }"
    with pytest.raises(ShapeError) as caught:
        sardonyx.infer_shapes(model(wrong))
    for part in ("value y", "node turn (Transpose)", "float[3, 2]", "float[3, 4]"):
        assert part in str(caught.value)
    lenient = model(wrong)
    sardonyx.infer_shapes(lenient, strict=False)
    assert lenient.graph.outputs[0].shape == [3, 2]


def test_compatible_sizes_do_not_conflict() -> None:
    sardonyx.infer_shapes(model(CONTRADICTION))


@pytest.mark.parametrize(
    ("node", "error"), [("Add(x, w)", ShapeError), ("Add(x, i)", TypeMismatchError), ("MatMul(x, x)", ShapeError)]
)
def test_a_node_that_cannot_run_is_an_error_that_names_it(node: str, error: type[Exception]) -> None:
    text = f"g (float[2, 3] x, float[2, 4] w, int64[2, 3] i) => (y) {{ [sum] y = {node} }}"
    with pytest.raises(error, match=r"node sum"):
        sardonyx.infer_shapes(model(text))
    sardonyx.infer_shapes(model(text), strict=False)


def test_an_invalid_branch_is_not_an_error() -> None:
    sardonyx.infer_shapes(
        model("""g (bool c, float[2, 3] x) => (y) {
        y = If<then_branch = a () => (p) { p = Neg(x) }, else_branch = b () => (q) { q = MatMul(x, x) }>(c) }""")
    )


def test_cached_nodes_have_distinct_run_time_sizes() -> None:
    """Results cached from one model to the next have distinct sizes for each node."""
    text = "g (bool c, float[2, 4] x) => (a, b) <int64[1] flat = {-1}> {" + "".join(
        f"""{y} = If<then_branch = one{y} () => (p{y}) {{ p{y} = Identity(x) }},
            else_branch = two{y} () => (q{y}) {{ q{y} = Reshape(x, flat) }}>(c)  {y}2 = Reshape({y}, flat)  """
        for y in "ab"
    ) + "}"  # fmt: skip
    for _ in range(2):
        inference = infer(model(text))
        types = {value.name: inference.type(value) for value in inference.known}
        assert str(types["a2"]).startswith("float[")
        assert types["a2"] != types["b2"]


def test_repeated_inference_gives_identical_types() -> None:
    """The names of run-time sizes are identical too, so that later nodes hit the cache."""
    text = """g (int64 n, bool c, float[N] x, int64[2] s) => (y, z, e) {
        i = NonZero(x)  y = Transpose(i)
        a, rows = Loop<body = b (int64 k, bool go, float[K] v) => (bool more, float[L] d, float[K] r) {
            more = Identity(go)  d = Concat<axis = 0>(v, x)  r = Neg(v) }>(n, c, x)
        t = Reshape(a, s)  z = Transpose(t)
        b = If<then_branch = one () => (p) { p = Neg(a) },
               else_branch = two () => (q) { q = Concat<axis = 0>(x, a) }>(c)
        e = Concat<axis = 0>(b, a) }"""
    first, second = (infer(model(text)) for _ in range(2))
    types = [{value.name: inference.type(value) for value in inference.known} for inference in (first, second)]
    named = ("y", "a", "rows", "t", "z", "b", "e")
    assert all("%" in str(types[0][name]) for name in named)
    assert [types[0][name] for name in named] == [types[1][name] for name in named]
