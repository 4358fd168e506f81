"""Random sequences: constructed, edited, split, concatenated, read by position; and optionals."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

import sardonyx
from tests.rewrite.fuzz import GraphMaker, Unsuitable, generator, run_many

SUITES = os.environ.get("SARDONYX_SUITES", "")


def position(g: GraphMaker, length: int) -> str:
    at = g.int(-length, length - 1)
    dtype = g.pick(["int64", "int32"])
    if g.chance(0.8):
        return g.const(np.array(at, dtype))
    return g.input((), dtype, values=np.array(at, dtype), dynamic=False)


@generator("eliminate_sequence_at", "eliminate_sequence_length", "fuse_sequence_inserts", "rewrite_sequence_concat")
def edited(g: GraphMaker) -> None:
    shape = g.shape(g.int(1, 3), zero=0)
    tensors = [g.input(shape, dynamic=False) for _ in range(g.int(1, 3))]
    if g.chance(0.4):
        seq, length = g.node("SequenceEmpty"), 0
    else:
        seq, length = g.node("SequenceConstruct", *tensors), len(tensors)
    for _ in range(g.int(0, 4)):
        if length > 1 and g.chance(0.3):
            seq, length = g.node("SequenceErase", seq, position(g, length) if g.chance() else None), length - 1
        elif length and g.chance():
            seq, length = g.node("SequenceInsert", seq, g.pick(tensors), position(g, length)), length + 1
        else:
            seq, length = g.node("SequenceInsert", seq, g.node("Relu", g.pick(tensors))), length + 1
    if not length:
        raise Unsuitable("an empty sequence")
    read = g.int(0, 3)
    if read == 0:
        g.output(g.node("Abs", g.node("SequenceAt", seq, position(g, length))))
        if g.chance(0.2):
            g.output(seq)
    elif read == 1:
        g.output(g.node("SequenceLength", seq))
    elif read == 2:
        new = g.int(0, 1)
        axis = g.axis(len(shape) + new)
        g.output(g.node("ConcatFromSequence", seq, axis=axis, new_axis=new if new or g.chance() else None))
    else:
        g.output(seq)


@generator("rewrite_split_to_sequence", "rewrite_sequence_concat", "eliminate_sequence_length")
def split_and_read(g: GraphMaker) -> None:
    shape = g.shape(g.int(1, 3), zero=0, high=6)
    x = g.input(shape)
    rank = len(shape)
    axis = g.axis(rank)
    size = shape[axis]
    kind = g.int(0, 2)
    keepdims = g.maybe(g.int(0, 1))
    if kind == 0:
        sizes, count = None, size
    elif kind == 1:
        part_size = g.pick([n for n in range(1, size + 1) if size % n == 0])
        sizes, count = g.const(np.array(part_size, g.pick(["int64", "int32"]))), size // part_size
    else:
        first = g.int(0, size)
        sizes, count = g.ints(first, size - first), 2
    seq = g.node("SplitToSequence", x, sizes, axis=axis if axis or g.chance() else None, keepdims=keepdims)
    read = g.int(0, 4)
    if read <= 2:
        for _ in range(g.int(1, 3)):
            g.output(g.node("Relu", g.node("SequenceAt", seq, position(g, count))))
        if g.chance(0.1):
            g.output(seq)
    elif read == 3:
        g.output(g.node("SequenceLength", seq))
    else:
        lower = kind == 0 and keepdims == 0
        new = 1 if lower and g.chance(0.7) else g.int(0, 1)
        remaining = rank - lower
        if remaining + new == 0:
            raise Unsuitable("scalars are not joined along an axis of theirs")
        back = axis if g.chance() and not (lower and not new) else g.axis(remaining + new)
        if kind == 2 and (new or back != axis):
            raise Unsuitable("parts of different sizes are joined along their axis alone")
        g.output(g.node("ConcatFromSequence", seq, axis=back, new_axis=new))


@generator("eliminate_optional")
def optionals(g: GraphMaker) -> None:
    x = g.input(g.shape(2, zero=0), dynamic=False)
    value = g.node("Relu", x)
    if g.chance(0.8) or g.opset < 18:
        value = g.node("Optional", value)
    if g.chance():
        g.output(g.node("OptionalHasElement", value))
    else:
        g.output(g.node("Neg", g.node("OptionalGetElement", value)))


@generator("eliminate_optional")
def empty_optional(g: GraphMaker) -> None:
    g.input((1,), dynamic=False)
    if g.opset < 15:
        raise Unsuitable("there are no optionals yet")
    optional = g.node("Optional", type=helper.make_tensor_type_proto(1, [2]))
    g.output(g.node("OptionalHasElement", optional))


LABELS = [
    "eliminate_optional",
    "eliminate_sequence_at",
    "eliminate_sequence_length",
    "fuse_sequence_inserts",
    "rewrite_sequence_concat",
    "rewrite_split_to_sequence",
]


@pytest.mark.parametrize("label", LABELS)
def test_outputs_stay_equal(label: str) -> None:
    run_many(label, 150)


@pytest.mark.skipif(not SUITES, reason="SARDONYX_SUITES does not name the folder of public models")
def test_intonation_model_has_no_sequence_left() -> None:
    after = sardonyx.optimize(Path(SUITES) / "real" / "voicevox_intonation.onnx", verify=False).report.after
    assert not {op for op in after.operators if "Sequence" in op}
