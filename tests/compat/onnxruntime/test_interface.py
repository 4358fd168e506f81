"""The drop-in and ONNX Runtime have the same results and exceptions for the same calls."""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.compat.onnxruntime.reference_page import names_of_package

from sardonyx.compat import onnxruntime as ours
from sardonyx.compat.onnxruntime.unsupported import REASONS

real = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: test)")

BOTH = pytest.mark.parametrize("ort", [real, ours], ids=["real", "ours"])


def parsed(graph: str, imports: str = '"": 18') -> bytes:
    return onnx.parser.parse_model(f"<ir_version: 9, opset_import: [{imports}]> {graph}").SerializeToString()


NET = parsed("net (float[N, 2] x, int64[2] k) => (float[N, 2] y, float[N, 2] z) { y = Relu(x) z = Neg(x) }")
GATHER = parsed("net (float[N] x, int64[M] k) => (float[M] y) { y = Gather(x, k) }")
X, K = np.array([[1, -2]], np.float32), np.zeros(2, np.int64)
FEEDS = {"x": X, "k": K}
CPU = ["CPUExecutionProvider"]


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile at session creation, which is the default for programs."""
    monkeypatch.delenv("SARDONYX_COMPILE")


def session(ort: Any, model: bytes = NET, options: Any = None) -> Any:
    if options is None:
        options = ort.SessionOptions()
        options.log_severity_level = 4
    return ort.InferenceSession(model, options, providers=CPU)


def exceptions(ort: Any) -> Any:
    return ort.capi.onnxruntime_pybind11_state


@BOTH
def test_inputs_and_outputs_are_described(ort: Any) -> None:
    described = session(
        ort, parsed("net (float[N, 2, M] x, string[] s, seq(float[A]) q) => (bool[3] y) { y = Greater(x, x) }")
    )
    assert [(info.name, info.type, info.shape) for info in described.get_inputs()] == [
        ("x", "tensor(float)", ["N", 2, "M"]), ("s", "tensor(string)", []), ("q", "seq(tensor(float))", []),
    ]  # fmt: skip
    assert str(session(ort).get_inputs()[0]) == "NodeArg(name='x', type='tensor(float)', shape=['N', 2])"
    assert [info.name for info in session(ort).get_outputs()] == ["y", "z"]
    assert described.get_providers() == CPU
    assert described.get_provider_options() == {"CPUExecutionProvider": {}}


@BOTH
def test_model_metadata_is_available(ort: Any) -> None:
    model = onnx.load_from_string(NET)
    model.producer_name, model.domain, model.model_version, model.doc_string = "me", "here", 7, "doc"
    model.graph.doc_string = "graph doc"
    onnx.helper.set_model_props(model, {"classes": "a,b"})
    metadata = session(ort, model.SerializeToString()).get_modelmeta()
    assert metadata.custom_metadata_map == {"classes": "a,b"}
    assert (metadata.producer_name, metadata.domain, metadata.version, metadata.description) == ("me", "here", 7, "doc")
    assert (metadata.graph_name, metadata.graph_description) == ("net", "graph doc")


@BOTH
def test_runs_return_arrays_in_order(ort: Any) -> None:
    opened = session(ort)
    for names in (None, [], ["y", "z"]):
        y, z = opened.run(names, FEEDS)
        assert (y.tolist(), z.tolist(), y.dtype) == ([[1, 0]], [[-1, 2]], np.float32)
    assert opened.run(["z"], FEEDS)[0].tolist() == [[-1, 2]]
    assert opened.run(None, {"x": [[1.0, -2.0]], "k": K})[0].tolist() == [[1, 0]]
    assert opened.run(None, FEEDS, ort.RunOptions())[0].tolist() == [[1, 0]]
    assert opened.run(None, input_feed={"x": X[:, ::-1], "k": K})[0].tolist() == [[0, 1]]


@BOTH
@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda s: s.run(["w"], FEEDS), "InvalidArgument"),
        (lambda s: s.run(None, {**FEEDS, "w": X}), "InvalidArgument"),
        (lambda s: s.run(None, {**FEEDS, "x": X.astype(np.float64)}), "InvalidArgument"),
        (lambda s: s.run(None, {**FEEDS, "x": X[0]}), "InvalidArgument"),
        (lambda s: s.run(None, {**FEEDS, "x": X[:, :1]}), "InvalidArgument"),
        (lambda s: s.run(None, {"x": X}), ValueError),
        (lambda s: s.run("y", FEEDS), TypeError),
        (lambda s: s.run(None, FEEDS, 5), TypeError),
        (lambda s: s.run(None, [X, K]), Exception),
        (lambda s: s.io_binding().bind_cpu_input("w", X), RuntimeError),
    ],
)
def test_invalid_calls_raise_the_same_exceptions(ort: Any, call: Callable[[Any], Any], kind: Any) -> None:
    with pytest.raises(getattr(exceptions(ort), kind) if isinstance(kind, str) else kind):
        call(session(ort))


@BOTH
@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("/nowhere/net.onnx", "NoSuchFile"),
        (b"this is no model at all", "InvalidProtobuf"),
        (b"", "InvalidArgument"),
        (5, TypeError),
        (parsed("n (float[N] x) => (float[N] y) { y = Nonsense(x) }"), "InvalidGraph"),
        (parsed("n (float[N] x) => (float[N] y) { y = my.Nonsense(x) }", '"": 18, "my": 1'), "Fail"),
        (parsed("n (string[N] x) => (string[N] y) { y = Relu(x) }"), "InvalidGraph"),
    ],
)
def test_invalid_models_raise_the_same_exceptions(ort: Any, model: Any, kind: Any) -> None:
    with pytest.raises(getattr(exceptions(ort), kind) if isinstance(kind, str) else kind):
        session(ort, model)


@BOTH
def test_failing_runs_raise_the_same_exceptions(ort: Any) -> None:
    opened = session(ort, GATHER)
    with pytest.raises(exceptions(ort).InvalidArgument, match="ONNXRuntimeError"):
        opened.run(None, {"x": X[0], "k": K + 9})
    assert opened.run(None, {"x": X[0], "k": K})[0].tolist() == [1, 1]


@BOTH
def test_providers_are_accepted_in_every_form(ort: Any) -> None:
    name = CPU[0]
    for providers, options in (
        (CPU, None), (None, None), ([(name, {"arena": 1})], None), (CPU, [{"arena": 1}]), (tuple(CPU), None),
    ):  # fmt: skip
        assert ort.InferenceSession(NET, None, providers, options).get_providers()[-1] == name
    for wrong in (([5], None), (CPU, [{}, {}]), (CPU, [5]), ([(name, {})], [{}])):
        with pytest.raises(ValueError, match="provider"):
            ort.InferenceSession(NET, None, *wrong, enable_fallback=0)
    with pytest.warns(UserWarning, match="CUDAExecutionProvider"):
        opened = ort.InferenceSession(NET, providers=["CUDAExecutionProvider", name])
    assert opened.get_providers() == CPU
    opened.set_providers(CPU)
    assert opened.run(["y"], FEEDS)[0].tolist() == [[1, 0]]


@BOTH
def test_options_have_the_same_names_types_and_defaults(ort: Any) -> None:
    reference, options = real.SessionOptions(), ort.SessionOptions()
    for name in dir(reference):
        value = getattr(reference, name)
        if name.startswith("_") or callable(value):
            continue
        assert (
            getattr(options, name) == value
            if isinstance(value, (int, str))
            else int(getattr(options, name)) == int(value)
        )
    options.intra_op_num_threads, options.logid = 1, "mine"
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    assert (options.intra_op_num_threads, options.logid) == (1, "mine")
    for name, wrong in (("graph_optimization_level", 2), ("intra_op_num_threads", "a"), ("enable_profiling", "yes")):
        with pytest.raises(TypeError):
            setattr(options, name, wrong)
    with pytest.raises(AttributeError):
        options.nonsense = 1
    options.add_session_config_entry("session.load_model_format", "ONNX")
    assert options.get_session_config_entry("session.load_model_format") == "ONNX"
    with pytest.raises(RuntimeError, match="does not have configuration with key"):
        options.get_session_config_entry("nothing")
    assert session(ort, options=options).run(["y"], FEEDS)[0].tolist() == [[1, 0]]
    assert session(ort, options=options).get_session_options().intra_op_num_threads == 1


@BOTH
def test_free_dimensions_are_overridden(ort: Any) -> None:
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_name("N", 3)
    assert session(ort, options=options).get_inputs()[0].shape == [3, 2]


@BOTH
def test_initializers_are_replaced_and_overridden(ort: Any) -> None:
    model = onnx.load_from_string(parsed("n (float[2] x, float[2] w) => (float[2] y) { y = Mul(x, w) }"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([2, 2], np.float32), "w"))
    opened = session(ort, model.SerializeToString())
    assert [info.name for info in opened.get_inputs()] == ["x"]
    assert [(info.name, info.shape) for info in opened.get_overridable_initializers()] == [("w", [2])]
    assert opened.run(None, {"x": X[0]})[0].tolist() == [2, -4]
    assert opened.run(None, {"x": X[0], "w": X[0]})[0].tolist() == [1, 4]
    del model.graph.input[1]
    if ort is ours:  # ONNX Runtime refuses a value that shares an array's memory.
        options = ort.SessionOptions()
        options.add_initializer("w", ort.OrtValue.ortvalue_from_numpy(np.array([3, 3], np.float32)))
        assert session(ort, model.SerializeToString(), options).run(None, {"x": X[0]})[0].tolist() == [3, -6]


@BOTH
def test_runs_are_terminated(ort: Any) -> None:
    opened, options = session(ort), ort.RunOptions()
    options.terminate = True
    with pytest.raises(exceptions(ort).Fail, match="terminate"):
        opened.run(None, FEEDS, options)
    options.terminate = False
    assert opened.run(["y"], FEEDS, options)[0].tolist() == [[1, 0]]


@BOTH
def test_asynchronous_runs_call_the_callback(ort: Any) -> None:
    done = threading.Event()
    calls: list[Any] = []

    def callback(results: Any, user_data: Any, error: str) -> None:
        calls.append((None if error else results[0].tolist(), user_data, bool(error)))
        done.set()

    session(ort).run_async(["y"], FEEDS, callback, "mine")
    assert done.wait(300)
    done.clear()
    session(ort, GATHER).run_async(["y"], {"x": X[0], "k": K + 9}, callback, "mine")
    assert done.wait(300)
    assert calls == [([[1, 0]], "mine", False), (None, "mine", True)]


@BOTH
def test_values_share_memory_with_their_array(ort: Any) -> None:
    array = X.copy()
    value = ort.OrtValue.ortvalue_from_numpy(array)
    assert value.numpy() is not None and np.shares_memory(value.numpy(), array)
    assert (value.data_type(), value.element_type(), value.shape()) == ("tensor(float)", 1, [1, 2])
    assert (value.device_name(), value.tensor_size_in_bytes(), value.data_ptr()) == ("cpu", 8, array.ctypes.data)
    assert (value.is_tensor(), value.is_tensor_sequence(), value.is_sparse_tensor(), value.has_value()) == (
        True, False, False, True,
    )  # fmt: skip
    value.update_inplace(X * 2)
    assert array.tolist() == [[2, -4]]
    empty = ort.OrtValue.ortvalue_from_shape_and_type([2, 3], np.int64, "cpu", 0)
    assert (empty.shape(), empty.data_type()) == ([2, 3], "tensor(int64)")
    assert ort.OrtValue.ortvalue_from_shape_and_type([1], 10).data_type() == "tensor(float16)"
    with pytest.raises(RuntimeError):
        ort.OrtValue.ortvalue_from_numpy(array, "cuda", 0)
    (y,) = session(ort).run_with_ort_values(["y"], {"x": value, "k": ort.OrtValue.ortvalue_from_numpy(K)})
    assert y.numpy().tolist() == [[2, 0]]


@BOTH
def test_values_of_strided_arrays_are_contiguous(ort: Any) -> None:
    value = ort.OrtValue.ortvalue_from_numpy(np.arange(6, dtype=np.float32).reshape(2, 3).T)
    assert (value.shape(), value.numpy().tolist()) == ([3, 2], [[0, 3], [1, 4], [2, 5]])
    memory = np.frombuffer(ctypes.string_at(value.data_ptr(), 24), np.float32)
    assert memory.tolist() == [0, 3, 1, 4, 2, 5]


def test_sequences_and_maps_have_types() -> None:
    tensors, maps = ours.OrtValue([X, X]), ours.OrtValue([{1: 0.5, 2: 0.25}])
    assert (tensors.data_type(), tensors.is_tensor_sequence()) == ("seq(tensor(float))", True)
    assert (maps.data_type(), maps.is_tensor_sequence()) == ("seq(map(int64,tensor(float)))", False)
    assert ours.OrtValue({"a": np.int64(3)}).data_type() == "map(string,tensor(int64))"
    assert ours.OrtValue([]).data_type() == "seq(tensor(float))"


def test_a_callback_receives_unexpected_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, str]] = []
    done = threading.Event()
    opened = session(ours)

    def broken(*arguments: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(opened, "run", broken)
    opened.run_async(["y"], FEEDS, lambda results, data, error: (calls.append((results, error)), done.set()), None)
    assert done.wait(300)
    assert calls == [([], "MemoryError")]


def test_values_support_dlpack() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")
    value = ours.OrtValue.ortvalue_from_numpy(X.copy())
    tensor = torch.from_dlpack(value)
    tensor[0, 0] = 9
    assert value.numpy()[0, 0] == 9
    flags = ours.OrtValue.from_dlpack(torch.tensor([1, 0], dtype=torch.uint8), is_bool_tensor=True)
    assert flags.numpy().tolist() == [True, False]
    assert session(ours).run(["y"], {"x": torch.tensor([[3.0, -3.0]]), "k": K})[0].tolist() == [[3, 0]]


@BOTH
def test_bound_inputs_are_read_and_bound_outputs_written(ort: Any) -> None:
    opened = session(ort)
    binding = opened.io_binding()
    x, y = X.copy(), np.zeros((1, 2), np.float32)
    binding.bind_input("x", "cpu", 0, np.float32, x.shape, x.ctypes.data)
    binding.bind_ortvalue_input("k", ort.OrtValue.ortvalue_from_numpy(K))
    binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
    binding.bind_output("z")
    opened.run_with_iobinding(binding)
    assert y.tolist() == [[1, 0]]
    assert [array.tolist() for array in binding.copy_outputs_to_cpu()] == [[[1, 0]], [[-1, 2]]]
    assert [output.numpy().tolist() for output in binding.get_outputs()] == [[[1, 0]], [[-1, 2]]]
    x[:] = 5
    opened.run_with_iobinding(binding, ort.RunOptions())
    assert y.tolist() == [[5, 5]]
    binding.clear_binding_outputs()
    binding.bind_ortvalue_output("z", value := ort.OrtValue.ortvalue_from_shape_and_type([1, 2], np.float32))
    opened.run_with_iobinding(binding)
    assert value.numpy().tolist() == [[-5, -5]]
    binding.clear_binding_inputs()
    binding.bind_cpu_input("x", X.astype(np.float64))
    with pytest.raises(RuntimeError, match="Error in execution"):
        opened.run_with_iobinding(binding)


@BOTH
def test_sparse_tensors_have_views_of_their_format(ort: Any) -> None:
    device = ort.OrtDevice.make("cpu", 0)
    values = np.array([1, 2], np.float32)
    coo = ort.SparseTensor.sparse_coo_from_numpy([2, 3], values, np.array([1, 5]), device)
    assert (coo.format().name, list(coo.dense_shape()), coo.values().tolist()) == ("ORT_SPARSE_COO", [2, 3], [1, 2])
    assert coo.as_coo_view().indices().reshape(-1).tolist() == [1, 5]
    csr = ort.SparseTensor.sparse_csr_from_numpy([2, 3], values, np.array([1, 2]), np.array([0, 1, 2]), device)
    view = csr.as_csrc_view()
    assert (view.inner().tolist(), view.outer().tolist()) == ([1, 2], [0, 1, 2])
    with pytest.raises(Exception, match=r".+"):
        csr.as_coo_view()
    if ort is ours:
        assert csr.to_dense().tolist() == coo.to_dense().tolist() == [[0, 1, 0], [0, 0, 2]]


@BOTH
def test_runs_are_recorded(ort: Any, tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "trace")
    opened = session(ort, options=options)
    assert opened.get_profiling_start_time_ns() > 0
    opened.run(None, FEEDS)
    path = Path(opened.end_profiling())
    assert path.parent == tmp_path and path.name.startswith("trace") and path.stat().st_size > 0
    assert session(ort).end_profiling() == ""


@BOTH
def test_the_rewritten_model_is_written(ort: Any, tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    session(ort, options=options)
    onnx.checker.check_model(str(tmp_path / "optimized.onnx"))


@BOTH
def test_functions_of_the_package_return_plausible_values(ort: Any) -> None:
    assert ort.get_device() == "CPU"
    assert CPU[0] in ort.get_available_providers() and set(ort.get_available_providers()) <= set(
        ort.get_all_providers()
    )
    assert ort.get_version_string() == ort.__version__ and isinstance(ort.get_build_info(), str)
    ort.set_default_logger_severity(3)
    ort.set_default_logger_severity(2)
    ort.set_seed(0)
    ort.disable_telemetry_events()
    levels = ort.GraphOptimizationLevel
    assert (str(levels.ORT_ENABLE_ALL), int(levels.ORT_ENABLE_ALL)) == ("GraphOptimizationLevel.ORT_ENABLE_ALL", 99)


def test_a_callback_receives_log_messages(capfd: pytest.CaptureFixture[str], logs: None) -> None:
    records: list[tuple[Any, ...]] = []

    def receive(severity: int, category: str, name: str, location: str, message: str) -> None:
        records.append((severity, category, message))
        logging.getLogger("sardonyx").error("while it runs")
        if message == "bad":
            raise ValueError("the function's own")

    ours.set_default_logger_callback(receive, 1)
    try:
        for message in ("good", "bad"):
            logging.getLogger("sardonyx.runtime").warning(message)
        logging.getLogger("sardonyx").debug("below the severity")
        assert records == [(2, "sardonyx.runtime", "good"), (2, "sardonyx.runtime", "bad")]
        assert "the function's own" in capfd.readouterr().err
    finally:
        ours.set_default_logger_callback(None)
        ours.set_default_logger_severity(2)
    logging.getLogger("sardonyx.runtime").warning("after it")
    assert len(records) == 2
    for callback, severity in ((None, 5), (receive, -1), ("text", 2)):
        with pytest.raises(ours.capi.onnxruntime_pybind11_state.Fail):
            ours.set_default_logger_callback(callback, severity)  # type: ignore[arg-type]


def test_tensors_are_copied_into_tensors() -> None:
    one, other = (ours.OrtValue.ortvalue_from_numpy(array.copy()) for array in (X, X * 0))
    ours.copy_tensors([one], [other])
    assert other.numpy().tolist() == X.tolist()
    with pytest.raises(RuntimeError):
        ours.copy_tensors([one], [ours.OrtValue.ortvalue_from_numpy(K)])


def test_sessions_are_edited_while_they_run() -> None:
    opened = session(ours)
    opened.add_node(ours.Node("Abs", inputs=["z"], outputs=["a"]))
    opened.add_output("a")
    assert [info.name for info in opened.get_outputs()] == ["y", "z", "a"]
    assert opened.run(["a"], FEEDS)[0].tolist() == [[1, 2]]


# Every name.


def names_of(thing: Any) -> list[str]:
    return [name for name in dir(thing) if not name.startswith("_")]


def test_every_name_of_the_package_resolves() -> None:
    assert [name for name in names_of_package(real) if not hasattr(ours, name)] == []


@pytest.mark.parametrize(
    "name", ["InferenceSession", "SessionOptions", "RunOptions", "OrtValue", "IOBinding", "NodeArg", "ModelMetadata",
             "SparseTensor", "OrtDevice", "OrtMemoryInfo"],
)  # fmt: skip
def test_every_name_of_a_class_resolves(name: str) -> None:
    instances = {
        "NodeArg": lambda: session(ours).get_inputs()[0],
        "ModelMetadata": lambda: session(ours).get_modelmeta(),
        "OrtMemoryInfo": lambda: session(ours).get_input_memory_infos()[0],
    }
    subject = instances[name]() if name in instances else getattr(ours, name)
    assert [member for member in names_of(getattr(real, name)) if not hasattr(subject, member)] == []


@pytest.mark.parametrize("name", [name for name in names_of(real) if hasattr(getattr(real, name), "__members__")])
def test_enumerations_have_the_same_members(name: str) -> None:
    members = getattr(getattr(real, name), "__members__", {})
    assert {key: int(value) for key, value in members.items()} == {
        key: int(value) for key, value in getattr(getattr(ours, name), "__members__", {}).items()
    }


def test_exceptions_resolve() -> None:
    theirs, mine = real.capi.onnxruntime_pybind11_state, ours.capi.onnxruntime_pybind11_state
    kinds = [
        n for n in dir(theirs) if isinstance(getattr(theirs, n), type) and issubclass(getattr(theirs, n), Exception)
    ]
    assert kinds and all(issubclass(getattr(mine, name), Exception) for name in kinds)


@pytest.mark.parametrize("name", [name for name in REASONS if "." not in name])
def test_refused_names_raise_with_a_reason(name: str) -> None:
    arguments = ("a", "b") if name.startswith("reg") else ("a",) if name.startswith("unreg") else ()
    with pytest.raises(exceptions(ours).NotImplemented, match="is not implemented: "):
        getattr(ours, name)(*arguments)
