"""Code for every target: it assembles, calls nothing that nobody defines, and computes what the interpreter does.

A processor runs the code of lesser ones of its kind, so that most of it runs here whatever this machine is.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Sequence

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from tests.compiler.elementwise import TARGETS as HERE
from tests.compiler.program_checks import assert_close
from tests.core.programs import computed

from sardonyx.compiler.analysis.element_types import DTYPES
from sardonyx.compiler.codegen import load_store
from sardonyx.compiler.codegen.kernel_builder import Index, Kernel
from sardonyx.compiler.llvm.object_code import assembly, module_text
from sardonyx.compiler.lower.launch import NAME, all_launches
from sardonyx.compiler.pipeline import lower_function
from sardonyx.compiler.program import Program
from sardonyx.compiler.target import description
from sardonyx.compiler.target.description import NAMED
from sardonyx.core.ir.graph import Function
from sardonyx.core.ir.types import DType, TensorType, numpy_dtype
from sardonyx.errors import OptionError
from sardonyx.runtime.compiled.frontend import trace_model

pytestmark = pytest.mark.sampled

TEMPLATES = {
    "map": "(T[N, 19] x) => (T[N, 19] y) { a = Tanh(x) b = Mul(a, x) y = Erf(b) }",
    "turned": "(T[N, 33] x) => (T[33, N] y) { a = Transpose <perm = [1, 0]> (x) y = Add(a, a) }",
    "softmax": "(T[N, 19] x) => (T[N, 19] y) { y = Softmax(x) }",
    "reduction": "(T[5, N, 19] x) => (T[N] y) { y = ReduceSum <keepdims=0> (x, axes) }",
    "product": "(T[N, 37] x) => (T[N, 45] y) { a = MatMul(x, w) y = Relu(a) }",
    "few columns": "(T[N, 37] x) => (T[N, 3] y) { y = MatMul(x, narrow) }",
    "computed": "(T[N, 37] x, T[37, 21] z) => (T[N, 21] y) { y = MatMul(x, z) }",
    "attention": """(T[2, N, 16] q, T[2, 33, 16] k, T[2, 33, 16] v) => (T[2, N, 16] y) {
        t = Transpose <perm = [0, 2, 1]> (k) s = MatMul(q, t) p = Softmax(s) y = MatMul(p, v) }""",
    "convolution": "(T[1, 17, H, 9] x) => (T[1, 20, H, 9] y) { y = Conv <pads = [1, 1, 1, 1]> (x, filters) }",
    "winograd": "(T[1, 17, 12, 12] x) => (T[1, 20, 12, 12] y) { y = Conv <pads = [1, 1, 1, 1]> (x, filters) }",
    "depthwise": "(T[1, 24, H, 9] x) => (T[1, 24, H, 9] y) { y = Conv <pads = [1, 1, 1, 1], group = 24> (x, each) }",
    "planar": "(T[1, 3, H, 30] x) => (T[1, 2, H, 30] y) { y = Conv <pads = [1, 1, 1, 1]> (x, thin) }",
    "transposed": "(T[1, 17, H, 9] x) => (T[1, 17, J, K] y) { y = ConvTranspose <strides = [2, 2]> (x, filters0) }",
    "pooling": "(T[1, 17, 8, 9] x) => (T[1, 17, 4, 4] y) { y = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x) }",
    "recurrent": "(T[6, 2, 10] x) => (T[6, 1, 2, 12] y) { y = LSTM <hidden_size = 12> (x, wi, wr) }",
    "sort": "(T[N, 19] x) => (T[N, 5] y, int64[N, 5] at) { y, at = TopK(x, five) }",
    "scan": "(T[N, 19] x) => (T[N, 19] y) { y = CumSum(x, one) }",
    "scatter": "(T[N, 19] x, T[N, 4] u) => (T[N, 19] y) { y = ScatterElements <axis = 1> (x, where, u) }",
    "resize": '(T[1, 5, 6, 7] x) => (T[1, 5, 12, 14] y) { y = Resize <mode = "linear"> (x, , scales) }',
}
SHAPES = {
    "w": (37, 45), "narrow": (37, 3), "filters": (20, 17, 3, 3), "filters0": (17, 17, 3, 3), "each": (24, 1, 3, 3),
    "thin": (2, 3, 3, 3), "wi": (1, 48, 10), "wr": (1, 48, 12),
}  # fmt: skip
WHOLE = {"axes": np.array([0, 2]), "five": np.array([5]), "one": np.array(1), "where": np.array([[3, 0, 7, 2]] * 5)}
SIZES = {"N": 5, "H": 7}
TYPES = {"float": DType.FLOAT, "float16": DType.FLOAT16, "double": DType.DOUBLE}
FOREIGN = [name for name in NAMED if name not in HERE]
"""Targets whose code this machine does not run."""


def cases(targets: Sequence[str]) -> list[tuple[str, str, str]]:
    """Templates with types that their code depends on; processors that convert halves are alike where there are any."""
    actual = [(target, name, "float") for target in targets for name in TEMPLATES]
    actual += [(target, name, "float16") for target in targets for name in TEMPLATES if target in ("sse", "neon")]
    return actual + [(target, name, "double") for target in targets for name in ("map", "product")]


def function(name: str, dtype: str) -> Function:
    """A template's function over open sizes."""
    body = re.sub(r"\bT\b", dtype, TEMPLATES[name])
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 18]> g {body}')
    rng = np.random.default_rng(0)
    read = {name for node in model.graph.node for name in node.input}
    constants = {name: rng.standard_normal(shape).astype(numpy_dtype(TYPES[dtype])) for name, shape in SHAPES.items()}
    constants |= {**WHOLE, "scales": np.array([1, 1, 2, 2], np.float32)}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(constants[item], item) for item in read & {*constants})
    return trace_model(ir.from_proto(model))


def feeds(function: Function) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    actual = []
    for value in function.inputs:
        assert isinstance(value.type, TensorType) and value.type.shape is not None
        shape = [size if isinstance(size, int) else size.evaluate(SIZES) for size in value.type.shape]
        actual.append(rng.standard_normal(shape).astype(numpy_dtype(value.type.dtype)))
    return actual


def undefined(text: str) -> Iterator[str]:
    """The functions that assembly calls and that neither it nor this process has."""
    process = ctypes.CDLL(None)
    here = set(re.findall(r'^"?([\w.$]+)"?:', text, flags=re.M))
    for called in set(re.findall(r"\b(?:callq?|jmp|bl|b)\s+([A-Za-z_][\w.$]*)(?:@PLT)?\s*$", text, flags=re.M)) - here:
        if not called.startswith(".") and not hasattr(process, called):
            yield called


@pytest.mark.parametrize(("target", "name", "dtype"), cases(FOREIGN))
def test_code_for_other_machines_assembles(target: str, name: str, dtype: str) -> None:
    lowering = lower_function(function(name, dtype), NAMED[target], 2)
    assert lowering.launches and not lowering.grouping.host
    for launch in all_launches(lowering.launches):
        if not launch.bodies:
            text = module_text(NAMED[target], [launch.text.replace(NAME, "k")], launch.declarations)
            assert not [*undefined(assembly(text, NAMED[target]))]


@pytest.mark.parametrize(("target", "name", "dtype"), cases([name for name in HERE if name in ("avx2", "sse")]))
def test_code_for_lesser_machines_computes_what_the_interpreter_does(target: str, name: str, dtype: str) -> None:
    core = function(name, dtype)
    program = Program.compile(core, target=NAMED[target], threads=2)
    assert not program.host
    arguments = feeds(core)
    assert_close(program.run(arguments), computed(core, arguments))


@pytest.mark.parametrize("lanes", ["one", "all"])
@pytest.mark.parametrize("target", NAMED)
def test_loads_and_stores_of_every_type_call_nothing(target: str, lanes: str) -> None:
    kernel = Kernel(NAMED[target])
    e = kernel.emitter
    for dtype in DTYPES:
        width = 1 if lanes == "one" else NAMED[target].lanes(32)
        source, result = kernel.buffer(), kernel.buffer()
        value = load_store.load(e, dtype, source, Index("%first", 1), width)
        is_float = load_store.register_type(dtype) == "float"
        load_store.store(e, DType.FLOAT if is_float else dtype, value, result, Index("%first", 1), width)
        load_store.store(e, dtype, value, result, Index("%last", 1), width)
    text = assembly(module_text(NAMED[target], [kernel.definition("k")], e.declarations), NAMED[target])
    assert not [*undefined(text)]


def test_matrix_tiles_are_used_only_if_the_system_permits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(description, "request_tiles", lambda: False)
    assert not description.host.__wrapped__().has_tiles
    monkeypatch.setenv("SARDONYX_TARGET", "avx512amx")
    with pytest.raises(OptionError, match="matrix tiles"):
        description.host.__wrapped__()
