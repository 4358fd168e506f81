"""ONNX Runtime's interface, answered as ONNX Runtime answers: the same calls on both, results and exceptions alike."""

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
    """Compile when a session is made, as programs have it that do not know of Sardonyx."""
    monkeypatch.delenv("SARDONYX_COMPILE")


def session(ort: Any, model: bytes = NET, options: Any = None) -> Any:
    if options is None:
        options = ort.SessionOptions()
        options.log_severity_level = 4
    return ort.InferenceSession(model, options, providers=CPU)


def exceptions(ort: Any) -> Any:
    return ort.capi.onnxruntime_pybind11_state


@BOTH
def test_inputs_and_outputs_are_told(ort: Any) -> None:
    found = session(
        ort, parsed("net (float[N, 2, M] x, string[] s, seq(float[A]) q) => (bool[3] y) { y = Greater(x, x) }")
    )
    assert [(each.name, each.type, each.shape) for each in found.get_inputs()] == [
        ("x", "tensor(float)", ["N", 2, "M"]), ("s", "tensor(string)", []), ("q", "seq(tensor(float))", []),
    ]  # fmt: skip
    assert str(session(ort).get_inputs()[0]) == "NodeArg(name='x', type='tensor(float)', shape=['N', 2])"
    assert [each.name for each in session(ort).get_outputs()] == ["y", "z"]
    assert found.get_providers() == CPU
    assert found.get_provider_options() == {"CPUExecutionProvider": {}}


@BOTH
def test_the_model_tells_of_itself(ort: Any) -> None:
    model = onnx.load_from_string(NET)
    model.producer_name, model.domain, model.model_version, model.doc_string = "me", "here", 7, "doc"
    model.graph.doc_string = "graph doc"
    onnx.helper.set_model_props(model, {"classes": "a,b"})
    told = session(ort, model.SerializeToString()).get_modelmeta()
    assert told.custom_metadata_map == {"classes": "a,b"}
    assert (told.producer_name, told.domain, told.version, told.description) == ("me", "here", 7, "doc")
    assert (told.graph_name, told.graph_description) == ("net", "graph doc")


@BOTH
def test_runs_give_arrays_in_order(ort: Any) -> None:
    found = session(ort)
    for names in (None, [], ["y", "z"]):
        y, z = found.run(names, FEEDS)
        assert (y.tolist(), z.tolist(), y.dtype) == ([[1, 0]], [[-1, 2]], np.float32)
    assert found.run(["z"], FEEDS)[0].tolist() == [[-1, 2]]
    assert found.run(None, {"x": [[1.0, -2.0]], "k": K})[0].tolist() == [[1, 0]]
    assert found.run(None, FEEDS, ort.RunOptions())[0].tolist() == [[1, 0]]
    assert found.run(None, input_feed={"x": X[:, ::-1], "k": K})[0].tolist() == [[0, 1]]


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
def test_wrong_calls_raise_its_exceptions(ort: Any, call: Callable[[Any], Any], kind: Any) -> None:
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
def test_models_that_cannot_run_raise_its_exceptions(ort: Any, model: Any, kind: Any) -> None:
    with pytest.raises(getattr(exceptions(ort), kind) if isinstance(kind, str) else kind):
        session(ort, model)


@BOTH
def test_data_without_a_result_raise_its_exceptions(ort: Any) -> None:
    found = session(ort, GATHER)
    with pytest.raises(exceptions(ort).InvalidArgument, match="ONNXRuntimeError"):
        found.run(None, {"x": X[0], "k": K + 9})
    assert found.run(None, {"x": X[0], "k": K})[0].tolist() == [1, 1]


@BOTH
def test_providers_are_given_in_every_form(ort: Any) -> None:
    name = CPU[0]
    for providers, options in (
        (CPU, None), (None, None), ([(name, {"arena": 1})], None), (CPU, [{"arena": 1}]), (tuple(CPU), None),
    ):  # fmt: skip
        assert ort.InferenceSession(NET, None, providers, options).get_providers()[-1] == name
    for wrong in (([5], None), (CPU, [{}, {}]), (CPU, [5]), ([(name, {})], [{}])):
        with pytest.raises(ValueError, match="provider"):
            ort.InferenceSession(NET, None, *wrong, enable_fallback=0)
    with pytest.warns(UserWarning, match="CUDAExecutionProvider"):
        found = ort.InferenceSession(NET, providers=["CUDAExecutionProvider", name])
    assert found.get_providers() == CPU
    found.set_providers(CPU)
    assert found.run(["y"], FEEDS)[0].tolist() == [[1, 0]]


@BOTH
def test_options_have_its_names_types_and_defaults(ort: Any) -> None:
    ours_options, options = real.SessionOptions(), ort.SessionOptions()
    for name in dir(ours_options):
        value = getattr(ours_options, name)
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
    found = session(ort, model.SerializeToString())
    assert [each.name for each in found.get_inputs()] == ["x"]
    assert [(each.name, each.shape) for each in found.get_overridable_initializers()] == [("w", [2])]
    assert found.run(None, {"x": X[0]})[0].tolist() == [2, -4]
    assert found.run(None, {"x": X[0], "w": X[0]})[0].tolist() == [1, 4]
    del model.graph.input[1]
    if ort is ours:  # The other does not take a value that holds an array's own memory.
        options = ort.SessionOptions()
        options.add_initializer("w", ort.OrtValue.ortvalue_from_numpy(np.array([3, 3], np.float32)))
        assert session(ort, model.SerializeToString(), options).run(None, {"x": X[0]})[0].tolist() == [3, -6]


@BOTH
def test_runs_are_terminated(ort: Any) -> None:
    found, options = session(ort), ort.RunOptions()
    options.terminate = True
    with pytest.raises(exceptions(ort).Fail, match="terminate"):
        found.run(None, FEEDS, options)
    options.terminate = False
    assert found.run(["y"], FEEDS, options)[0].tolist() == [[1, 0]]


@BOTH
def test_runs_call_back(ort: Any) -> None:
    done = threading.Event()
    told: list[Any] = []

    def callback(results: Any, user_data: Any, error: str) -> None:
        told.append((None if error else results[0].tolist(), user_data, bool(error)))
        done.set()

    session(ort).run_async(["y"], FEEDS, callback, "mine")
    assert done.wait(300)
    done.clear()
    session(ort, GATHER).run_async(["y"], {"x": X[0], "k": K + 9}, callback, "mine")
    assert done.wait(300)
    assert told == [([[1, 0]], "mine", False), (None, "mine", True)]


@BOTH
def test_values_hold_the_array_itself(ort: Any) -> None:
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
def test_values_of_strided_arrays_lie_close(ort: Any) -> None:
    value = ort.OrtValue.ortvalue_from_numpy(np.arange(6, dtype=np.float32).reshape(2, 3).T)
    assert (value.shape(), value.numpy().tolist()) == ([3, 2], [[0, 3], [1, 4], [2, 5]])
    memory = np.frombuffer(ctypes.string_at(value.data_ptr(), 24), np.float32)
    assert memory.tolist() == [0, 3, 1, 4, 2, 5]


def test_values_that_are_no_tensors_say_what_they_are() -> None:
    tensors, maps = ours.OrtValue([X, X]), ours.OrtValue([{1: 0.5, 2: 0.25}])
    assert (tensors.data_type(), tensors.is_tensor_sequence()) == ("seq(tensor(float))", True)
    assert (maps.data_type(), maps.is_tensor_sequence()) == ("seq(map(int64,tensor(float)))", False)
    assert ours.OrtValue({"a": np.int64(3)}).data_type() == "map(string,tensor(int64))"
    assert ours.OrtValue([]).data_type() == "seq(tensor(float))"


def test_whoever_waits_for_a_run_is_told_of_any_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of one that nobody foresaw."""
    told: list[tuple[Any, str]] = []
    done = threading.Event()
    found = session(ours)

    def broken(*arguments: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(found, "run", broken)
    found.run_async(["y"], FEEDS, lambda results, data, error: (told.append((results, error)), done.set()), None)
    assert done.wait(300)
    assert told == [([], "MemoryError")]


def test_values_speak_dlpack() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")
    value = ours.OrtValue.ortvalue_from_numpy(X.copy())
    tensor = torch.from_dlpack(value)
    tensor[0, 0] = 9
    assert value.numpy()[0, 0] == 9
    flags = ours.OrtValue.from_dlpack(torch.tensor([1, 0], dtype=torch.uint8), is_bool_tensor=True)
    assert flags.numpy().tolist() == [True, False]
    assert session(ours).run(["y"], {"x": torch.tensor([[3.0, -3.0]]), "k": K})[0].tolist() == [[3, 0]]


@BOTH
def test_what_is_bound_is_read_and_written(ort: Any) -> None:
    found = session(ort)
    binding = found.io_binding()
    x, y = X.copy(), np.zeros((1, 2), np.float32)
    binding.bind_input("x", "cpu", 0, np.float32, x.shape, x.ctypes.data)
    binding.bind_ortvalue_input("k", ort.OrtValue.ortvalue_from_numpy(K))
    binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
    binding.bind_output("z")
    found.run_with_iobinding(binding)
    assert y.tolist() == [[1, 0]]
    assert [each.tolist() for each in binding.copy_outputs_to_cpu()] == [[[1, 0]], [[-1, 2]]]
    assert [each.numpy().tolist() for each in binding.get_outputs()] == [[[1, 0]], [[-1, 2]]]
    x[:] = 5
    found.run_with_iobinding(binding, ort.RunOptions())
    assert y.tolist() == [[5, 5]]
    binding.clear_binding_outputs()
    binding.bind_ortvalue_output("z", value := ort.OrtValue.ortvalue_from_shape_and_type([1, 2], np.float32))
    found.run_with_iobinding(binding)
    assert value.numpy().tolist() == [[-5, -5]]
    binding.clear_binding_inputs()
    binding.bind_cpu_input("x", X.astype(np.float64))
    with pytest.raises(RuntimeError, match="Error in execution"):
        found.run_with_iobinding(binding)


@BOTH
def test_sparse_tensors_are_held(ort: Any) -> None:
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
    found = session(ort, options=options)
    assert found.get_profiling_start_time_ns() > 0
    found.run(None, FEEDS)
    path = Path(found.end_profiling())
    assert path.parent == tmp_path and path.name.startswith("trace") and path.stat().st_size > 0
    assert session(ort).end_profiling() == ""


@BOTH
def test_the_rewritten_model_is_written(ort: Any, tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    session(ort, options=options)
    onnx.checker.check_model(str(tmp_path / "optimized.onnx"))


@BOTH
def test_functions_of_the_package(ort: Any) -> None:
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


def test_a_function_takes_what_is_logged(capfd: pytest.CaptureFixture[str], logs: None) -> None:
    told: list[tuple[Any, ...]] = []

    def take(severity: int, category: str, name: str, place: str, message: str) -> None:
        told.append((severity, category, message))
        logging.getLogger("sardonyx").error("while it runs")
        if message == "bad":
            raise ValueError("the function's own")

    ours.set_default_logger_callback(take, 1)
    try:
        for message in ("good", "bad"):
            logging.getLogger("sardonyx.runtime").warning(message)
        logging.getLogger("sardonyx").debug("less than was asked for")
        assert told == [(2, "sardonyx.runtime", "good"), (2, "sardonyx.runtime", "bad")]
        assert "the function's own" in capfd.readouterr().err
    finally:
        ours.set_default_logger_callback(None)
        ours.set_default_logger_severity(2)
    logging.getLogger("sardonyx.runtime").warning("after it")
    assert len(told) == 2
    for callback, severity in ((None, 5), (take, -1), ("text", 2)):
        with pytest.raises(ours.capi.onnxruntime_pybind11_state.Fail):
            ours.set_default_logger_callback(callback, severity)  # type: ignore[arg-type]


def test_tensors_are_copied_into_others() -> None:
    one, other = (ours.OrtValue.ortvalue_from_numpy(each.copy()) for each in (X, X * 0))
    ours.copy_tensors([one], [other])
    assert other.numpy().tolist() == X.tolist()
    with pytest.raises(RuntimeError):
        ours.copy_tensors([one], [ours.OrtValue.ortvalue_from_numpy(K)])


def test_sessions_are_edited_while_they_run() -> None:
    found = session(ours)
    found.add_node(ours.Node("Abs", inputs=["z"], outputs=["a"]))
    found.add_output("a")
    assert [each.name for each in found.get_outputs()] == ["y", "z", "a"]
    assert found.run(["a"], FEEDS)[0].tolist() == [[1, 2]]


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
    made = instances[name]() if name in instances else getattr(ours, name)
    assert [each for each in names_of(getattr(real, name)) if not hasattr(made, each)] == []


@pytest.mark.parametrize("name", [name for name in names_of(real) if hasattr(getattr(real, name), "__members__")])
def test_enumerations_have_its_members(name: str) -> None:
    members = getattr(getattr(real, name), "__members__", {})
    assert {key: int(value) for key, value in members.items()} == {
        key: int(value) for key, value in getattr(getattr(ours, name), "__members__", {}).items()
    }


def test_exceptions_resolve() -> None:
    theirs, found = real.capi.onnxruntime_pybind11_state, ours.capi.onnxruntime_pybind11_state
    kinds = [
        n for n in dir(theirs) if isinstance(getattr(theirs, n), type) and issubclass(getattr(theirs, n), Exception)
    ]
    assert kinds and all(issubclass(getattr(found, name), Exception) for name in kinds)


@pytest.mark.parametrize("name", [name for name in REASONS if "." not in name])
def test_what_is_refused_says_why(name: str) -> None:
    arguments = ("a", "b") if name.startswith("reg") else ("a",) if name.startswith("unreg") else ()
    with pytest.raises(exceptions(ours).NotImplemented, match="is not implemented: "):
        getattr(ours, name)(*arguments)
