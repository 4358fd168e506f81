"""Reports of a profile: modules, traces, pages, and plots of memory; each from one small session."""

from __future__ import annotations

import io
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from rich.console import Console

import sardonyx
from sardonyx.errors import ModelFileError, OptionError
from sardonyx.report.flame import Frame, flame, flame_table, merge_single_children
from sardonyx.report.kernels import label, main_node, node_names, operators, profile_data
from sardonyx.report.memory import largest_arenas, memory_svg, memory_tables, write_plot
from sardonyx.report.profile_page import write_page
from sardonyx.report.scopes import Scopes
from sardonyx.report.trace import module_spans, trace_events, write_trace
from sardonyx.runtime.profiling.profile import Profile

NET = onnx.parser.parse_model(
    """<ir_version: 9, opset_import: ["": 18]>
    net (float[16, 8] x) => (float[16, 8] y, float[K] z) {
        a = MatMul(x, v)
        b = Relu(a)
        c = MatMul(b, w)
        d = Softmax(c)
        y = MatMul(d, w)
        z = Unique(y)
    }"""
)
_NAMES = (
    "/stem/MatMul",
    "/body/0/act/Relu",
    "/body/0/fc/MatMul",
    "/body/1/Softmax",
    "/head/fc/MatMul",
    "/head/Unique",
)
for _node, _name in zip(NET.graph.node, _NAMES, strict=True):
    _node.name = _name
for _number, _name in enumerate("vw"):
    _array = np.random.default_rng(_number).standard_normal((8, 8)).astype(np.float32)
    NET.graph.initializer.append(onnx.numpy_helper.from_array(_array, _name))
FEEDS = {"x": np.ones((16, 8), np.float32)}


@pytest.fixture(scope="module")
def session() -> sardonyx.Session:
    return sardonyx.Session(NET, compile="wait", threads=2)


@pytest.fixture(scope="module")
def profile(session: sardonyx.Session) -> Profile:
    return session.profile(FEEDS, runs=2)


@pytest.fixture(scope="module")
def root(session: sardonyx.Session, profile: Profile) -> Frame:
    return flame(profile, Scopes(session.model), operators(session.model), "net")


def model_of(text: str, *weights: str) -> ir.Model:
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 18]>\n{text}')
    for name in weights:
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((4, 4), np.float32), name))
    return ir.from_proto(model)


# Scopes.


def test_scopes_are_paths_in_names() -> None:
    scopes = Scopes(ir.from_proto(NET))
    assert scopes.of("c") == ("body", "0", "fc")
    assert scopes.of("y") == ("head", "fc")
    assert scopes.of("/stem/MatMul/made") == ("stem",), "the optimizer derived the tensor from that node"
    assert scopes.of("nothing") == ()


def test_scopes_come_from_weights_and_neighbours() -> None:
    model = model_of(
        """net (float[4, 4] x) => (float[4, 4] y) {
            a = MatMul(x, u)
            b = Relu(a)
            c = Add(b, b)
            d = MatMul(c, v)
            e = Relu(d)
            y = MatMul(e, w)
        }""",
        *"uvw",
    )
    names = ("block.0.fc1.weight", "block.0.fc2.weight", "block.1.fc1.weight")
    for value, name in zip(list(model.graph.initializers.values()), names, strict=True):
        value.name = name
    scopes = Scopes(model)
    assert scopes.of("a") == ("block", "0", "fc1")
    assert scopes.of("b") == scopes.of("c") == ("block", "0")
    assert scopes.of("e") == ("block",)


def test_scopes_come_from_metadata() -> None:
    model = model_of("net (float[4] x) => (float[4] y) { y = Relu(x) }")
    (node,) = model.graph
    node.metadata_props["pkg.torch.onnx.name_scopes"] = "['', 'layer1', 'layer1.0', 'layer1.0.relu', 'relu']"
    assert Scopes(model).of("y") == ("layer1", "0", "relu")
    node.metadata_props["pkg.torch.onnx.name_scopes"] = "relu("
    assert Scopes(model).of("y") == ()
    assert not Scopes(model).known


# Modules.


def test_modules_sum_to_the_whole_run(profile: Profile, root: Frame) -> None:
    inside = sum(kernel.seconds for kernel in profile.kernels) + sum(seconds for _, seconds in profile.interpreted)
    assert root.total == pytest.approx(inside + profile.elsewhere)
    assert root.count == len(profile.kernels) + len(profile.interpreted)
    assert {"stem", "body", "head"} <= root.inside.keys()
    leaf = root.inside["head"].inside["Unique"]
    assert leaf.own == leaf.total > 0
    data = root.as_dict()
    assert data["total"] == root.total
    assert [frame["total"] for frame in data["inside"]] == sorted((e["total"] for e in data["inside"]), reverse=True)


def test_modules_with_a_single_child_are_merged() -> None:
    leaf = Frame("Conv", 2.0, 1)
    tree = Frame("net", 1.0, 0, {"a": Frame("a", 0.0, 0, {"b": Frame("b", 0.0, 0, {"Conv": leaf})})})
    shown = merge_single_children(tree)
    assert [*shown.inside] == ["a/b"]
    assert shown.total == tree.total
    assert shown.count == tree.count


def test_the_table_shows_the_parents_of_shown_frames(root: Frame) -> None:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(flame_table(root, 4))
    text = console.export_text()
    assert "net" in text
    assert "faster frames are hidden" in text
    shown = [line for line in text.splitlines() if line.startswith("│") and "µs" not in line]
    assert len(shown) == 4


# Kernels.


def test_profile_data_names_the_nodes(session: sardonyx.Session, profile: Profile) -> None:
    data = profile_data(profile, node_names(session.model))
    json.dumps(data)
    assert {"MatMul /stem/MatMul", "Softmax /body/1/Softmax"} <= {entry["node"] for entry in data["kernels"]}
    assert data["interpreted"][0]["node"] == "Unique /head/Unique"


def test_a_derived_tensor_has_the_label_of_its_source_node(session: sardonyx.Session) -> None:
    names = node_names(session.model)
    assert label("/stem/MatMul/split", names) == "MatMul /stem/MatMul"
    assert label("unheard of", names) == "'unheard of'"


def test_a_folded_convolution_is_the_main_node_of_its_kernel() -> None:
    text = """net (float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) {
        a = Conv<pads = [1, 1, 1, 1]>(x, w)
        b = BatchNormalization(a, s, t, m, v)
        y = Relu(b)
    }"""
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 18]>\n{text}')
    arrays = {"w": np.ones((4, 4, 3, 3)), **{name: np.ones(4) for name in "stmv"}}
    for name, array in arrays.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    session = sardonyx.Session(model, compile="wait")
    profile = session.profile({"x": np.ones((1, 4, 8, 8), np.float32)}, runs=1)
    heaviest = max(profile.kernels, key=lambda entry: entry.note.operations or 0)
    assert heaviest.note.main == "a"
    assert {"a", "b", "y"} <= {tensor for entry in profile.kernels for tensor in entry.note.tensors}
    assert main_node(heaviest.note, node_names(session.model)).startswith("Conv 'a'")


# Traces.


def test_a_trace_holds_every_kernel_module_and_thread(
    session: sardonyx.Session, profile: Profile, tmp_path: Path
) -> None:
    names, scopes = node_names(session.model), Scopes(session.model)
    write_trace(tmp_path / "trace.json", profile, names, scopes)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert events == json.loads(json.dumps(trace_events(profile, names, scopes)))
    spans = [event for event in events if event["ph"] == "X"]
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in spans)
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {"run", "modules", "thread 1"} <= set(tracks.values())
    run = [event for event in spans if tracks[event["tid"]] == "run"]
    assert [e["args"]["kernel"] for e in run if e["cat"] == "kernel"] == [*range(len(profile.kernels))]
    assert "Unique /head/Unique" in [event["name"] for event in run if event["cat"] == "interpreter"]
    assert {"stem", "body", "head"} <= {event["name"] for event in spans if event["cat"] == "module"}


def test_module_spans_are_nested(session: sardonyx.Session, profile: Profile) -> None:
    spans = list(module_spans(profile, Scopes(session.model)))
    for depth, _, begin, seconds in spans:
        parents = [s for s in spans if s[0] == depth - 1 and s[2] <= begin and begin + seconds <= s[2] + s[3] + 1e-12]
        assert not depth or parents


def test_unwritable_files_are_refused(session: sardonyx.Session, profile: Profile, root: Frame, tmp_path: Path) -> None:
    names, scopes, absent = node_names(session.model), Scopes(session.model), tmp_path / "absent"
    with pytest.raises(ModelFileError, match="trace"):
        write_trace(absent / "trace.json", profile, names, scopes)
    with pytest.raises(ModelFileError, match="page"):
        write_page(absent / "page.html", "net", profile, names, scopes, root, session.memory())
    with pytest.raises(ModelFileError, match="plot"):
        write_plot(absent / "plot.svg", session.memory(), names, "net")
    with pytest.raises(OptionError, match=r"Use \.svg or \.html"):
        write_plot(tmp_path / "plot.png", session.memory(), names, "net")


# Pages.


def test_a_page_is_self_contained(session: sardonyx.Session, profile: Profile, root: Frame, tmp_path: Path) -> None:
    names = node_names(session.model)
    write_page(tmp_path / "p.html", "a <b>", profile, names, Scopes(session.model), root, session.memory())
    text = (tmp_path / "p.html").read_text(encoding="utf-8")
    assert "a &lt;b&gt;: profile" in text
    outside = re.findall(r'(?:src|href)="|url\(|@import|<script', text)
    assert not outside
    pictures = [ET.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]
    labels = [picture.get("aria-label", "") for picture in pictures]
    assert any(name.startswith("Kernels below the roofline") for name in labels)
    assert any(name.startswith("One run over time") for name in labels)
    assert any(name.startswith("Arena") for name in labels)
    assert all(entry.note.title in text for entry in profile.kernels)
    assert "Unique /head/Unique" in text


def test_a_page_of_an_uncompiled_model_reports_the_interpreter(tmp_path: Path) -> None:
    session = sardonyx.Session(NET, compile="off")
    profile = session.profile(FEEDS, runs=1)
    scopes = Scopes(session.model)
    names, frames = node_names(session.model), flame(profile, scopes, operators(session.model), "net")
    write_page(tmp_path / "p.html", "net", profile, names, scopes, frames, session.memory())
    assert "not compiled" in (tmp_path / "p.html").read_text(encoding="utf-8")


# Memory.


def test_a_picture_shows_every_value_and_the_peak(session: sardonyx.Session) -> None:
    (arena,) = largest_arenas(session.memory())
    picture = ET.fromstring(memory_svg(arena, node_names(session.model), alone=True))
    titles = [entry.text or "" for entry in picture.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == len([entry for entry in arena.buffers if not entry.inside])
    assert any("peak:" in (entry.text or "") for entry in picture.iter("{http://www.w3.org/2000/svg}text"))


def test_the_terminal_shows_the_occupancy_of_an_arena(session: sardonyx.Session) -> None:
    console = Console(width=120, record=True, file=io.StringIO())
    memory = session.memory()
    for part in memory_tables(memory, node_names(session.model), 1):
        console.print(part)
    text = console.export_text()
    (arena,) = largest_arenas(memory)
    assert f"▲ kernel {arena.busiest}" in text
    assert f"Alive at kernel {arena.busiest}" in text
    assert "peak of a call" in text
