"""Details that programs rely on: the drop-in and ONNX Runtime do the same."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from sardonyx.compat import onnxruntime as ours

real = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: test)")

BOTH = pytest.mark.parametrize("ort", [real, ours], ids=["real", "ours"])
CPU = ["CPUExecutionProvider"]
X = np.ones(4, np.float32)


def parsed(graph: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 18]> {graph}')


NEG = parsed("net (float[N, 2] x) => (float[N, 2] y) { y = Neg(x) }").SerializeToString()
ADDS = parsed("net (float[4] x) => (float[4] y) { a = Add(x, x) b = Mul(a, x) y = Add(b, x) }").SerializeToString()


def with_absent_file() -> onnx.ModelProto:
    """Return a model whose weight has its contents in a file that does not exist."""
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", "absent.bin"), ("offset", "4"), ("length", "16")):
        weight.external_data.add(key=key, value=value)
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])], "net", [info("x", 1, [4])], [info("y", 1, [4])], [weight]
    )
    return helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 18)])


@BOTH
def test_unknown_providers_are_refused_by_an_open_session(ort: Any) -> None:
    session = ort.InferenceSession(NEG, providers=CPU)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(RuntimeError, match="Unknown Provider Type: Invalid"):
            session.set_providers(["Invalid"])
        assert ort.InferenceSession(NEG, providers=["Invalid"]).get_providers() == CPU
    session.set_providers(CPU, [{}])
    assert session.get_providers() == CPU


@BOTH
def test_negative_sizes_are_open(ort: Any) -> None:
    model = onnx.load_from_string(NEG)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = -1
    session = ort.InferenceSession(model.SerializeToString(), providers=CPU)
    assert [info.shape for info in (*session.get_inputs(), *session.get_outputs())] == [[None, 2], [None, 2]]
    assert session.run(None, {"x": np.ones((3, 2), np.float32)})[0].tolist() == [[-1, -1]] * 3


@BOTH
@pytest.mark.parametrize("from_file", [True, False])
def test_weights_with_an_absent_file_are_replaced(ort: Any, from_file: bool, tmp_path: Path) -> None:
    model = with_absent_file()
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    source = str(tmp_path / "net.onnx") if from_file else model.SerializeToString()
    options = ort.SessionOptions()
    options.add_external_initializers(["w"], [ort.OrtValue.ortvalue_from_numpy(np.full(4, 2, np.float32))])
    assert ort.InferenceSession(source, options, providers=CPU).run(None, {"x": X})[0].tolist() == [3] * 4


@BOTH
@pytest.mark.parametrize("array", [np.ones(4), np.ones(5, np.float32)], ids=["type", "shape"])
def test_weights_of_another_type_or_shape_are_refused(ort: Any, array: np.ndarray) -> None:
    options = ort.SessionOptions()
    options.add_external_initializers(["w"], [ort.OrtValue.ortvalue_from_numpy(array)])
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.Fail, match="Replacement tensor"):
        ort.InferenceSession(with_absent_file().SerializeToString(), options, providers=CPU)


@BOTH
def test_weights_are_read_from_files_in_memory(ort: Any, tmp_path: Path) -> None:
    onnx.save(with_absent_file(), tmp_path / "net.onnx")
    content = np.arange(5, dtype=np.float32).tobytes()
    options = ort.SessionOptions()
    options.add_external_initializers_from_files_in_memory(["absent.bin"], [content], [len(content)])
    session = ort.InferenceSession(str(tmp_path / "net.onnx"), options, providers=CPU)
    assert session.run(None, {"x": X})[0].tolist() == [2, 3, 4, 5]


@BOTH
def test_weights_of_the_rewritten_model_are_written_to_the_requested_file(ort: Any, tmp_path: Path) -> None:
    model = parsed("net (float[N, 64] x) => (float[N, 2] y) { y = MatMul(x, w) }")
    weights = np.arange(128, dtype=np.float32).reshape(64, 2)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "rewritten.onnx")
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights.bin")
    options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "100")
    expected = ort.InferenceSession(model.SerializeToString(), options, providers=CPU).run(None, {"x": weights.T})
    assert (tmp_path / "weights.bin").stat().st_size >= weights.nbytes > (tmp_path / "rewritten.onnx").stat().st_size
    again = ort.InferenceSession(str(tmp_path / "rewritten.onnx"), providers=CPU).run(None, {"x": weights.T})
    assert again[0].tolist() == expected[0].tolist()


@BOTH
def test_sizes_of_sparse_tensors_are_a_list_and_their_arrays_are_read_only(ort: Any) -> None:
    indices = np.array([0, 4], np.int64)
    tensor = ort.SparseTensor.sparse_coo_from_numpy(
        [3, 3], np.ones(2, np.float32), indices, ort.OrtDevice.make("cpu", 0)
    )
    assert tensor.dense_shape() == [3, 3]
    assert not tensor.values().flags.writeable and not tensor.as_coo_view().indices().flags.writeable


@BOTH
def test_settings_of_an_arena_are_attributes(ort: Any) -> None:
    config = ort.OrtArenaCfg(8, 0, 4, 2)
    assert (config.max_mem, config.arena_extend_strategy, config.initial_chunk_size_bytes) == (8, 0, 4)
    named = ort.OrtArenaCfg({"max_mem": 16, "max_power_of_two_extend_bytes": 5})
    assert (named.max_mem, named.max_power_of_two_extend_bytes) == (16, 5)
    with pytest.raises(RuntimeError, match="Invalid OrtArenaCfg option"):
        ort.OrtArenaCfg({"unknown": 1})


@BOTH
def test_nodes_of_providers_are_recorded_on_request(ort: Any) -> None:
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.Fail, match="record_ep_graph_assignment_info"):
        ort.InferenceSession(ADDS, providers=CPU).get_provider_graph_assignment_info()
    options = ort.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    parts = ort.InferenceSession(ADDS, options, providers=CPU).get_provider_graph_assignment_info()
    assert sorted(node.op_type for part in parts for node in part.get_nodes()) == ["Add", "Add", "Mul"]
    assert {(part.ep_name, len(part.get_nodes())) for part in parts} == {("CPUExecutionProvider", 1)}


@BOTH
def test_texts_of_fixed_width_are_accepted(ort: Any) -> None:
    model = parsed("net (string[N] x) => (string[N] y) { y = Identity(x) }").SerializeToString()
    (texts,) = ort.InferenceSession(model, providers=CPU).run(None, {"x": np.array([b"ab", b"cd"]).astype(np.void)})
    assert texts.tolist() == ["ab", "cd"]


@BOTH
def test_memory_of_texts_is_not_bound(ort: Any) -> None:
    binding = ort.InferenceSession(NEG, providers=CPU).io_binding()
    for element_type in (int(TensorProto.STRING), np.dtype("U1"), np.dtype(object)):
        with pytest.raises(RuntimeError, match="Only binding non-string Tensors"):
            binding.bind_input("x", "cpu", 0, element_type, [1], X.ctypes.data)


@BOTH
def test_devices_have_vendors(ort: Any) -> None:
    device = ort.OrtDevice.make("cuda", 1)
    assert (device.device_type(), device.device_id(), device.device_vendor_id()) == (1, 1, 0x10DE)


@BOTH
def test_options_in_the_metadata_of_a_model_are_read_on_request(ort: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = onnx.load_from_string(NEG)
    model.metadata_props.add(key="ort_config", value='{"session_options": {"intra_op_num_threads": 2}}')
    plain = ort.InferenceSession(model.SerializeToString(), providers=CPU)
    assert plain.get_session_options().intra_op_num_threads == 0
    monkeypatch.setenv("ORT_LOAD_CONFIG_FROM_MODEL", "1")
    configured = ort.InferenceSession(model.SerializeToString(), providers=CPU)
    assert configured.get_session_options().intra_op_num_threads == 2


def test_files_of_onnx_runtimes_own_format_are_recognized(tmp_path: Path) -> None:
    (tmp_path / "net.ort").write_bytes(b"\x1c\0\0\0ORTM" + bytes(64))
    with pytest.raises(ours.capi.onnxruntime_pybind11_state.NotImplemented, match=r"own format \(.ort\)"):
        ours.InferenceSession(str(tmp_path / "net.ort"))


def test_malformed_options_in_the_metadata_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORT_LOAD_CONFIG_FROM_MODEL", "1")
    model = onnx.load_from_string(NEG)
    model.metadata_props.add(key="ort_config", value="[1]")
    with pytest.raises(ours.capi.onnxruntime_pybind11_state.Fail, match="'ort_config' is malformed"):
        ours.InferenceSession(model.SerializeToString())


@BOTH
def test_tensors_in_unknown_memory_are_refused(ort: Any) -> None:
    kind, allocator = ort.OrtMemoryInfoDeviceType.GPU, ort.OrtAllocatorType.ORT_DEVICE_ALLOCATOR
    memory = ort.OrtMemoryInfo.create_v2(
        "Unknown", kind, 0xDEAD, 0, ort.OrtDeviceMemoryType.HOST_ACCESSIBLE, 0, allocator
    )
    with pytest.raises(RuntimeError, match="No shared allocator found"):
        ort.OrtValue.ortvalue_from_shape_and_type([2], np.float32, memory_info=memory)


def test_objects_that_are_no_strings_are_converted_for_inputs_of_strings() -> None:
    model = parsed("net (string[N] x) => (string[N] y) { y = Identity(x) }").SerializeToString()
    feeds = {"x": np.array(["a", float("nan"), 3, None], object)}
    expected, actual = (ort.InferenceSession(model, providers=CPU).run(None, feeds)[0] for ort in (real, ours))
    assert actual.tolist() == expected.tolist()


@BOTH
@pytest.mark.parametrize("mode", ["wait", "off"])
@pytest.mark.parametrize(
    ("graph", "error", "words"),
    [
        (
            "bool[N] x) => (bool[N] y) { y = Sqrt(x) }",
            "InvalidGraph",
            "Type Error: Type 'tensor(bool)' of input parameter",
        ),
        ("complex64[N] x) => (complex64[N] y) { y = Add(x, x) }", "InvalidGraph", "Type Error: Type 'tensor(complex"),
        (
            "float[N] x, int64[N] i) => (float[N] y) { y = Add(x, i) }",
            "Fail",
            "of Optype (Add) bound to different types",
        ),
    ],
    ids=["Sqrt", "complex", "different"],
)
def test_wrong_types_are_refused_when_a_model_is_loaded(
    ort: Any, monkeypatch: pytest.MonkeyPatch, mode: str, graph: str, error: str, words: str
) -> None:
    monkeypatch.setenv("SARDONYX_COMPILE", mode)
    with pytest.raises(getattr(ort.capi.onnxruntime_pybind11_state, error), match=re.escape(words)):
        ort.InferenceSession(parsed(f"net ({graph}").SerializeToString(), providers=CPU)
