"""Every node case of ONNX's suite with inputs and attributes damaged at random: an answer, or an error of ours."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, numpy_helper

from sardonyx.errors import ExecutionError, SardonyxError
from sardonyx.runtime import Session

INTEGERS = [0, -1, 1, 2, 3, -2, 5, 100, -100, 2**31, 10**12, -(10**12), 2**62, -(2**63), 2**63 - 1]
FLOATS = [0.0, -1.0, 1e30, np.nan, np.inf, -np.inf]
TEXTS = [b"", b"foo", b"[", b"\xff"]
LIMITS: dict[str, Any] = {"max_memory": 1 << 28, "timeout": 5, "max_loop_iterations": 1000}


def plain(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def resized(x: np.ndarray, draw: random.Random) -> np.ndarray:
    """Another size of an axis, or another rank."""
    if not x.ndim:
        return x[None]
    axis = draw.randrange(x.ndim)
    changes: list[Callable[[], np.ndarray]] = [
        lambda: x.take([], axis=axis),
        lambda: x[None],
        lambda: x.take(range(max(x.shape[axis] - 1, 0)), axis=axis),
        lambda: np.concatenate([x, x], axis=axis),
    ]
    if x.shape[0]:
        changes.append(lambda: x[0])
    return np.asarray(draw.choice(changes)())


def altered(x: np.ndarray, draw: random.Random) -> np.ndarray:
    """One element of another value."""
    x = np.array(x)
    if not x.size:
        return x
    with np.errstate(all="ignore"):
        match x.dtype.kind:
            case "i" | "u":
                x.flat[draw.randrange(x.size)] = np.array(draw.choice(INTEGERS)).astype(x.dtype)
            case "f":
                x.flat[draw.randrange(x.size)] = draw.choice(FLOATS)
            case "O":
                x.flat[0] = draw.choice(["", "x", "["])
    return x


def damaged_feed(value: Any, draw: random.Random) -> Any:
    if not isinstance(value, np.ndarray):
        return draw.choice([value, [], None])
    return draw.choice([resized, altered])(value, draw)


def damage_attribute(model: onnx.ModelProto, draw: random.Random) -> None:
    nodes = [node for node in model.graph.node if node.attribute]
    if not nodes:
        return
    node = draw.choice(nodes)
    attribute = draw.choice(list(node.attribute))
    match attribute.type:
        case AttributeProto.INT:
            attribute.i = draw.choice(INTEGERS)
        case AttributeProto.FLOAT:
            attribute.f = draw.choice(FLOATS)
        case AttributeProto.STRING:
            attribute.s = draw.choice(TEXTS)
        case AttributeProto.INTS:
            numbers = [*attribute.ints, 1][: draw.choice([-1, len(attribute.ints), len(attribute.ints) + 1])]
            if numbers:
                numbers[draw.randrange(len(numbers))] = draw.choice(INTEGERS)
            attribute.ints[:] = numbers
        case AttributeProto.FLOATS:
            del attribute.floats[-1:]
        case AttributeProto.STRINGS:
            del attribute.strings[-1:]
        case _:
            node.attribute.remove(attribute)


def outcome(case: Any, seed: int) -> str | None:
    """What a damaged case does that it must not; None for an answer or an error of ours."""
    draw = random.Random(f"{case.name} {seed}")
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    for value in (*model.graph.input, *model.graph.output):
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    feeds = [plain(value) for value in case.data_sets[0][0]]
    if draw.random() < 0.5 or not feeds:
        damage_attribute(model, draw)
    if feeds and draw.random() < 0.6:
        chosen = draw.randrange(len(feeds))
        feeds[chosen] = damaged_feed(feeds[chosen], draw)
    try:
        names = [value.name for value in model.graph.input]
        Session(model, **LIMITS).run(None, dict(zip(names, feeds, strict=False)))
    except SardonyxError as error:
        unforeseen = isinstance(error, ExecutionError) and "has no result for these inputs" in error.problem
        return f"{case.name}, {seed}: {error}: {error.__cause__!r}" if unforeseen else None
    return None


def cases() -> Sequence[Any]:
    loader = pytest.importorskip("onnx.backend.test.loader", reason="this onnx comes without its backend suite")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        actual: Sequence[Any] = loader.load_model_tests(kind="node")
    return actual


def test_one_case_in_four() -> None:
    assert [text for case in cases()[::4] if (text := outcome(case, 0))] == []


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 21))
def test_every_case(seed: int) -> None:
    assert [text for case in cases() if (text := outcome(case, seed))] == []
