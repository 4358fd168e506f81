"""Hostile cases: an operator's random case, with its sizes open, declared or wrong, and feeds with extreme values.

A :class:`Variant` is a model that is compiled once, from a seed; :meth:`Variant.feeds` draws any number of feeds, the
first of them the case's own.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.fuzz.large_cases import LARGE
from tests.fuzz.tree_cases import draw_trees
from tests.ops import microsoft_cases
from tests.ops.decoder_models import VOCABULARY, decoder_graph
from tests.ops.generators import GENERATORS
from tests.ops.generators.draw import Case, Draw
from tests.ops.generators.retyped import retyped
from tests.runtime.drawn_graphs import STRUCTURED
from tests.runtime.drawn_graphs import draw as draw_graph

RETYPED = 0.15
"""Share of cases with other element types than the generator's."""

INTEGERS = (-1, 0, 1, 2, 7, 63, 1 << 20, 1 << 40, 2**31 - 1, 2**31, -(2**31), 2**63 - 1, -(2**63), -2, -(1 << 20))
_DIFFERENT = 8
"""Values that an array of extreme elements alone is drawn from."""

FLOATS = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 2.0**31, -(2.0**31), 2.0**63, 1e30, -1e30, 1e-40, 0.5)

DECLARED_OUTPUT = 0.1
"""Share of models that declare the type and the sizes of an output, often wrongly."""

INSIDE = "inside."
"""Prefix of the name of a generator: its results are not outputs, and are declared with drawn types."""

SIZES = ("open", "declared", "named", "wrong")
"""The declarations of inputs: no sizes, the case's sizes, names for them, or the case's with one changed."""


GRAPHS: Mapping[str, str] = {f"graph.{name.replace(' ', '_')}": name for name in STRUCTURED}
"""Generators of graphs: structured operators between views."""


def _microsoft(name: str) -> Callable[[Draw], Case]:
    cases = [case for case in microsoft_cases.CASES if case.name == name]

    def draw_case(draw: Draw) -> Case:
        case = draw.pick(*cases)
        return Case(name, 1, case.arrays, case.attributes, case.outputs, "com.microsoft")

    return draw_case


def _standard(name: str) -> Callable[[Draw], Case]:
    def draw_case(draw: Draw) -> Case:
        case = GENERATORS[name](draw, name)
        return retyped(draw, case) if draw.chance(RETYPED) else case

    return draw_case


CASES: Mapping[str, Callable[[Draw], Case]] = {
    **{name: _standard(name) for name in GENERATORS},
    **{f"com.microsoft.{case.name}": _microsoft(case.name) for case in microsoft_cases.CASES},
    "com.microsoft.CachedAttention": lambda draw: _cached_attention(draw),
    "com.microsoft.Search": lambda draw: _search(draw),
    **LARGE,
    **dict.fromkeys(GRAPHS, lambda draw: _EMPTY),
    **{name: lambda draw, name=name: draw_trees(draw, name) for name in (  # type: ignore[misc]
        "TreeEnsemble", "TreeEnsembleRegressor", "TreeEnsembleClassifier"
    )},
}  # fmt: skip
"""Generators of cases by name: operators of the main domain without a prefix, and those of other domains."""


def _cached_attention(draw: Draw) -> Case:
    """Return an attention over a buffer of keys and values that is filled up to a length in a tensor."""
    batch, heads, size, room, new = (draw.integer(1, most) for most in (2, 2, 5, 20, 3))
    name, hidden = draw.pick("MultiHeadAttention", "DecoderMaskedMultiHeadAttention", "Attention"), heads * size
    length = np.array([draw.integer(0, max(room - new, 0))], np.int32)
    if name == "Attention":
        inputs = [draw.array(shape) for shape in ((batch, new, hidden), (hidden, 3 * hidden), (3 * hidden,))]
        past = draw.array((2, batch, heads, room, size))
        attributes = {"num_heads": heads, "past_present_share_buffer": 1, "unidirectional": draw.integer(0, 1)}
        return Case(name, 1, [*inputs, None, past, None, length], attributes, 2, "com.microsoft")
    qkv = [draw.array((batch, new, hidden)) for _ in range(3)]
    caches = [draw.array((batch, heads, room, size)) for _ in range(2)]
    left_out = [None] * (3 if name == "MultiHeadAttention" else 2)
    shared = {} if name == "MultiHeadAttention" else {"past_present_share_buffer": 1}
    beams = None
    if draw.chance(0.5):
        beams = draw.numbers.integers(0, batch, (1, batch, room)).astype(np.int32)
    width = [] if name == "MultiHeadAttention" else [np.array([batch], np.int32)]
    inputs = [*qkv, *left_out, *caches, length, *width, beams]
    return Case(name, 1, inputs, {"num_heads": heads, **shared}, 3, "com.microsoft")


def _search(draw: Draw) -> Case:
    """Return a generation of tokens, whose lengths and numbers of beams are values in tensors."""
    name = draw.pick("BeamSearch", "GreedySearch", "Sampling")
    batch, length = draw.integer(1, 3), draw.integer(1, 4)
    beams = draw.integer(1, 3)
    prompt = draw.numbers.integers(0, VOCABULARY, (batch, length)).astype(np.int32)
    most, least = (np.array([length + draw.integer(1, 5)], np.int32), np.array([draw.integer(0, 6)], np.int32))
    penalty = np.array([draw.pick(1.0, 0.5, 2.0)], np.float32)
    widths = [np.array([beams], np.int32), np.array([draw.integer(1, beams)], np.int32), penalty]
    inputs = [prompt, most, least, *(widths if name == "BeamSearch" else []), penalty]
    ngram = {"no_repeat_ngram_size": draw.integer(0, 3)}
    chosen = {"top_p": 0.0, "min_tokens_to_keep": 1, "filter_value": -math.inf} if name == "Sampling" else {}
    attributes = {"decoder": decoder_graph(), "eos_token_id": 5, "pad_token_id": 0, **ngram, **chosen}
    return Case(name, 1, inputs, attributes, 1, "com.microsoft")


@dataclass(frozen=True)
class Variant:
    """A model of one operator, and the source of its feeds.

    Attributes:
        label: The name of the generator, the seed and the declarations.
        case: The case, with its own values.
        model: The model.
        fed: The inputs that are not constants of the model, by name.
        draw: The source of feeds.
    """

    label: str
    case: Case
    model: onnx.ModelProto
    fed: Mapping[str, Any]
    draw: Draw

    def feeds(self, count: int) -> Iterator[dict[str, Any]]:
        """Yield the case's feeds, then hostile ones."""
        yield dict(self.fed)
        for _ in range(count - 1):
            yield self._hostile()

    def _hostile(self) -> dict[str, Any]:
        draw = self.draw
        feeds = dict(self.fed)
        names = [name for name, x in feeds.items() if isinstance(x, np.ndarray)]
        for name in draw.random.sample(names, min(len(names), draw.pick(1, 1, 2, 3))):
            x = feeds[name]
            if draw.chance(0.25):
                x = _resized(draw, x)
            feeds[name] = _poisoned(draw, x, self._sizes)
        return feeds

    @property
    def _sizes(self) -> list[int]:
        return [size for x in self.case.inputs if isinstance(x, np.ndarray) for size in x.shape]


def variant_of(name: str, seed: int) -> Variant:
    """Return the model of a generator for a seed."""
    draw = Draw(f"hostile {name} {seed}")
    if name in GRAPHS:
        return _graph_variant(draw, name, seed)
    case = CASES[name.removeprefix(INSIDE)](draw)
    model, fed, words = declared_model(draw, case)
    if name.startswith(INSIDE):
        _measure_results(draw, model.graph, [x for x in fed.values() if isinstance(x, np.ndarray)])
    return Variant(f"{name} seed {seed} ({words})", case, model, fed, draw)


def _graph_variant(draw: Draw, name: str, seed: int) -> Variant:
    """Return a graph of a structured operator between views."""
    sizes = draw.pick("fixed", "open", "counted")
    graph = draw_graph(GRAPHS[name], sizes, seed)
    _output_measured(graph.model.graph)
    case = Case(name, 18, list(graph.feeds.values()))
    return Variant(f"{name} seed {seed} ({sizes})", case, graph.model, graph.feeds, draw)


def _output_measured(graph: onnx.GraphProto) -> None:
    """Make the values outputs of which only ``Shape`` is read: compiled code removes them with their errors."""
    read = {name for node in graph.node if node.op_type != "Shape" for name in node.input}
    read |= {value.name for value in (*graph.input, *graph.output)}
    measured = (node.input[0] for node in graph.node if node.op_type == "Shape")
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in dict.fromkeys(measured) if name not in read)


def _measure_results(draw: Draw, graph: onnx.GraphProto, inputs: list[np.ndarray]) -> None:
    """Declare the results with drawn types, and return their sizes, a copy, and a reshape to their own sizes."""
    ranks = [x.ndim for x in inputs] or [1]
    sizes = [size for x in inputs for size in x.shape] or [3]
    results = list(graph.output)
    del graph.output[:]
    for result in results:
        kind = result.type.tensor_type.elem_type or draw.pick(onnx.TensorProto.FLOAT, onnx.TensorProto.INT64)
        shape = [draw.pick(*sizes, 1, 2, None) for _ in range(draw.pick(*ranks, draw.integer(0, 4)))]
        graph.value_info.append(helper.make_tensor_value_info(result.name, kind, shape))
        copy, measured, same = (f"{result.name}_{word}" for word in ("copy", "sizes", "same"))
        graph.node.append(helper.make_node("Identity", [result.name], [copy]))
        graph.node.append(helper.make_node("Shape", [result.name], [measured]))
        graph.node.append(helper.make_node("Reshape", [result.name, measured], [same]))
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in (copy, measured, same))


def declared_model(draw: Draw, case: Case) -> tuple[onnx.ModelProto, dict[str, Any], str]:
    """Return a case's model with drawn declarations of sizes and some constants, its feeds, and a description."""
    declared = draw.pick(*SIZES)
    constants = _constants(draw, case)
    model = case.model()
    fed = {key: x for key, x in case.feeds().items() if key not in constants}
    del model.graph.input[:]
    sizes = {size: f"s{size}" for x in fed.values() if isinstance(x, np.ndarray) for size in x.shape}
    chosen = draw.pick(*fed) if fed else ""
    for key, x in fed.items():
        declaration = "declared" if declared == "wrong" and key != chosen else declared
        model.graph.input.append(value_info(draw, key, x, declaration, sizes))
    if draw.chance(DECLARED_OUTPUT):
        _declare_output(draw, model.graph.output[0], [x for x in fed.values() if isinstance(x, np.ndarray)])
    model.graph.initializer.extend(numpy_helper.from_array(x, key) for key, x in constants.items())
    return model, fed, f"{declared}, constants {sorted(constants)}"


def _constants(draw: Draw, case: Case) -> dict[str, np.ndarray]:
    """Return some inputs as constants, which may be hostile too."""
    constants = {}
    for key, x in case.feeds().items():
        is_number = isinstance(x, np.ndarray) and x.dtype.kind in "biuf" and x.dtype.itemsize > 1
        if is_number and draw.chance(0.2):
            constants[key] = _poisoned(draw, x, list(x.shape)) if draw.chance(0.1) else x
    return constants


def value_info(draw: Draw, name: str, x: Any, sizes: str, names: Mapping[int, str]) -> onnx.ValueInfoProto:
    (info,) = replace(_EMPTY, inputs=[x]).model().graph.input
    info.name = name
    if isinstance(x, np.ndarray) and sizes != "open":
        shape = list(x.shape)
        if sizes == "wrong" and shape:
            shape[draw.integer(0, len(shape) - 1)] += draw.pick(-1, 1, 5)
        elif sizes == "wrong":
            shape = [1]
        declared = [names[size] for size in shape] if sizes == "named" else [max(size, 0) for size in shape]
        return helper.make_tensor_value_info(name, info.type.tensor_type.elem_type, declared)
    return info


def _declare_output(draw: Draw, output: onnx.ValueInfoProto, inputs: list[np.ndarray]) -> None:
    """Declare the sizes of an output: those of an input, or other ones, which the result may break."""
    if not inputs:
        return
    x = draw.pick(*inputs)
    kind = value_info(draw, output.name, x, draw.pick("declared", "wrong"), {})
    output.CopyFrom(kind)


_EMPTY = Case("Identity", 13, [])


def _resized(draw: Draw, x: np.ndarray) -> np.ndarray:
    """Return the elements with another size along an axis, or with another rank."""
    if not x.ndim or draw.chance(0.1):
        return x[None] if draw.chance(0.5) or not x.ndim else x.reshape(-1)
    shape = list(x.shape)
    axis = draw.integer(0, x.ndim - 1)
    shape[axis] = max(draw.pick(0, 1, shape[axis] - 1, shape[axis] + 1, 2 * shape[axis], 17), 0)
    if not x.size:
        return np.full(shape, "" if x.dtype == object else 1, x.dtype)
    return np.resize(x, shape)


def _poisoned(draw: Draw, x: np.ndarray, sizes: list[int]) -> np.ndarray:
    """Return the array with some extreme elements."""
    x = x.copy()
    if not x.size or x.dtype.kind not in "iufb":
        return x
    if draw.chance(0.25):
        options = np.stack([_extreme(draw, x.dtype, sizes) for _ in range(_DIFFERENT)])
        return np.asarray(draw.numbers.choice(options, x.shape))
    for _ in range(draw.pick(1, 1, 2)):
        x.flat[draw.integer(0, x.size - 1)] = _extreme(draw, x.dtype, sizes)
    return x


def _extreme(draw: Draw, dtype: np.dtype, sizes: list[int]) -> Any:
    if dtype.kind == "b":
        return np.bool_(draw.chance(0.5))
    if dtype.kind == "f":
        return draw.pick(*_extreme_floats(dtype))
    if sizes and draw.chance(0.5):
        size = draw.pick(*sizes)
        number = draw.pick(size, size - 1, size + 1, -size, -size - 1)
    else:
        number = draw.pick(*INTEGERS)
    limits = _limits(dtype)
    return dtype.type(min(max(number, limits[0]), limits[1]))


@functools.cache
def _extreme_floats(dtype: np.dtype) -> tuple[Any, ...]:
    with np.errstate(all="ignore"):
        return tuple(np.array(FLOATS).astype(dtype))


@functools.cache
def _limits(dtype: np.dtype) -> tuple[int, int]:
    limits = np.iinfo(dtype)
    return int(limits.min), int(limits.max)
