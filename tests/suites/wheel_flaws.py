"""Cases of older wheels whose data are not what the standard says, and what makes them so.

A flaw is told by its correction: the case with it gives what the standard says, and the case as stored does not.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from sardonyx.runtime import Session


@dataclass(frozen=True)
class Trial:
    """A data set of a case.

    Attributes:
        model: A model of one node.
        feeds: Inputs by name.
        expected: What is stored for its outputs.
    """

    model: onnx.ModelProto
    feeds: dict[str, Any]
    expected: list[Any]

    def run(self) -> list[Any]:
        """What the session gives."""
        return Session(self.model).run(None, self.feeds)

    def fed(self, **feeds: Any) -> Trial:
        """With other feeds, of other sizes than the model declares or not."""
        model = _copy(self.model)
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.ClearField("shape")
        return replace(self, model=model, feeds={**self.feeds, **feeds})

    def attributes(self) -> dict[str, Any]:
        """The attributes of its node."""
        return {a.name: helper.get_attribute_value(a) for a in self.model.graph.node[0].attribute}

    def with_attributes(self, **attributes: Any) -> Trial:
        """With other attributes; None takes one away."""
        model = _copy(self.model)
        merged = {name: value for name, value in (self.attributes() | attributes).items() if value is not None}
        (node,) = model.graph.node
        del node.attribute[:]
        node.attribute.extend(helper.make_attribute(name, value) for name, value in merged.items())
        return replace(self, model=model)


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


@dataclass(frozen=True)
class Flaw:
    """What is wrong with the data of some cases.

    Attributes:
        cases: A regular expression of their names.
        versions: The wheels.
        reason: What is wrong, and when it was corrected.
        corrected: The same trial without it.
    """

    cases: str
    versions: tuple[str, ...]
    reason: str
    corrected: Callable[[Trial], Trial]


def saturated(trial: Trial) -> Trial:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = trial.feeds.values()
    total = (a.astype(np.int64) - a_zero) @ (b.astype(np.int64) - b_zero)
    steps = np.rint(total.astype(np.float32) * (a_scale * b_scale / y_scale)).astype(np.int64) + y_zero
    np.testing.assert_array_equal(steps.astype(np.int8), trial.expected[0])
    return replace(trial, expected=[np.clip(steps, -128, 127).astype(np.int8)])


def in_doubles(trial: Trial) -> Trial:
    """Computed in doubles, and compared in doubles."""
    model = _copy(trial.model)
    for value in (*model.graph.input, *model.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    feeds = {k: x.astype(np.float64) if x.dtype == np.float32 else x for k, x in trial.feeds.items()}
    return Trial(model, feeds, [y.astype(np.float64) for y in trial.expected])


def zero_over_zero(trial: Trial) -> Trial:
    (x,), (y,) = trial.feeds.values(), trial.expected
    nothing = np.broadcast_to(~x.any(trial.attributes()["axis"], keepdims=True), x.shape)
    np.testing.assert_array_equal(np.isnan(y), nothing)
    return replace(trial, expected=[np.where(nothing, np.float32(0), y)])


def half_of_what_turns(trial: Trial) -> Trial:
    half = trial.attributes()["rotary_embedding_dim"] // 2
    return trial.fed(**{name: trial.feeds[name][..., :half] for name in ("cos_cache", "sin_cache")})


def heads_by_reshape(trial: Trial) -> Trial:
    """On four axes, cut as the data were."""
    options = trial.attributes()
    q_heads, kv_heads = options["q_num_heads"], options["kv_num_heads"]
    cut = {
        name: np.reshape(x, (x.shape[0], heads, x.shape[1], x.shape[2] // heads))
        for name, heads in (("Q", q_heads), ("K", kv_heads), ("V", kv_heads))
        for x in [trial.feeds[name]]
    }
    y, *rest = trial.expected
    joined = np.swapaxes(y.reshape(*y.shape[:2], q_heads, -1), 1, 2)
    return replace(trial.fed(**cut).with_attributes(q_num_heads=None, kv_num_heads=None), expected=[joined, *rest])


def keys_as_a_whole(trial: Trial) -> Trial:
    """A key for each query's head, in the order of the data."""
    times = trial.feeds["Q"].shape[1] // trial.feeds["K"].shape[1]
    tiled = {
        name: np.tile(x, (1, times, 1, 1))
        for name, x in trial.feeds.items()
        if name in ("K", "V", "past_key", "past_value")
    }
    y, *present = trial.expected
    return replace(trial.fed(**tiled), expected=[y, *(np.tile(x, (1, times, 1, 1)) for x in present)])


def modes_exchanged(trial: Trial) -> Trial:
    mode = trial.attributes()["qk_matmul_output_mode"]
    return trial.with_attributes(qk_matmul_output_mode={1: 2, 2: 1}[mode])


def cap_after_mask(trial: Trial) -> Trial:
    """The scores as the data have them, and of them what is computed from capped scores: the cap is a mask now."""
    cap = trial.attributes()["softcap"]
    *_, raw = trial.with_attributes(softcap=None, qk_matmul_output_mode=0).run()
    masked = raw + trial.feeds["attn_mask"]
    capped = cap * np.tanh(masked / cap)
    np.testing.assert_allclose(trial.expected[-1], capped, rtol=1e-3, atol=1e-7)
    return trial.fed(attn_mask=capped - raw).with_attributes(softcap=None, qk_matmul_output_mode=2)


RANDOM = r"test_bernoulli.*"
"""Cases whose values are random: types and shapes are compared."""

SINCE_1_7 = ("1.7.0", "1.8.1", "1.10.2", "1.12.0", "1.14.1", "1.16.2", "1.18.0", "1.20.1")

FLAWS: tuple[Flaw, ...] = (
    Flaw(
        r"test_adam_multiple", SINCE_1_7,
        "the epsilon of 0.01 that the data were computed with is not in the node; it is since 1.21",
        lambda trial: trial.with_attributes(epsilon=0.01),
    ),
    Flaw(
        r"test_(nesterov_)?momentum(_multiple)?", ("1.7.0",),
        "the data leave out the update of the tensors, and apply beta in the first iteration; corrected in 1.8",
        lambda trial: trial.fed(R=np.float32(0), T=np.int64(1)),
    ),
    Flaw(
        r"test_sequence_insert_at_front", ("1.8.1",),
        "the data append a tensor that is inserted at 0; corrected in 1.9",
        lambda trial: replace(trial, feeds=trial.feeds | {"position": np.array([len(trial.feeds["sequence"])])}),
    ),
    Flaw(
        r"test_averagepool_3d_dilations_large_count_include_pad_is_1_ceil_mode_is_True", ("1.16.2",),
        "cells that only rounding up adds were counted as padding; corrected in 1.17",
        lambda trial: trial.with_attributes(ceil_mode=0, pads=[0, 0, 0, 1, 1, 1]),
    ),
    Flaw(
        r"test_qlinearmatmul_[23]D_int8_float(16|32)", ("1.16.2", "1.18.0", "1.20.1"),
        "sums beyond int8 wrap in the data; QLinearMatMul saturates; corrected in 1.21",
        saturated,
    ),
    Flaw(
        r"test_rotary_embedding.*_rotary_dim", ("1.18.0",),
        "the caches have half the size of a head instead of half of rotary_embedding_dim; corrected in 1.19",
        half_of_what_turns,
    ),
    Flaw(
        r"test_l2normalization_axis_0", ("1.20.1",),
        "0 over a norm of 0 is NaN in the data, and 0 in the standard; corrected in 1.21",
        zero_over_zero,
    ),
    Flaw(
        r"test_castlike_(BFLOAT16_to_FLOAT|FLOAT_to_BFLOAT16)(_expanded)?", ("1.12.0", "1.14.1"),
        "the rank of `like` differs from the declared rank; corrected in 1.15",
        lambda trial: trial.fed(),
    ),
    Flaw(
        r"test_dft_inverse(_opset19)?", ("1.12.0", "1.14.1", "1.16.2", "1.18.0"),
        "data computed in float64 (in float32 since 1.19): zeros differ by 2e-7, and the tolerance is 1e-7",
        in_doubles,
    ),
    Flaw(
        r"(?!.*_expanded)test_attention_3d.*", ("1.18.0",),
        "a 3D input is reshaped to [B, heads, S, size] without a transposition; corrected in 1.19",
        heads_by_reshape,
    ),
    Flaw(
        r"(?!.*_expanded)test_attention_[34]d_gqa.*", ("1.18.0",),
        "keys of grouped queries are tiled instead of repeated head by head; corrected in 1.19",
        keys_as_a_whole,
    ),
    Flaw(
        r"test_attention_[34]d_with_(past_and_present_)?qk_matmul_bias(_[34]d_mask(_causal)?)?", ("1.18.0", "1.20.1"),
        "qk_matmul_output_mode 1 and 2 are exchanged; corrected in 1.21",
        modes_exchanged,
    ),
    Flaw(
        r"test_attention_[34]d_with_(past_and_present_)?qk_matmul_softcap", ("1.18.0", "1.20.1"),
        "the cap is applied to scores after the mask instead of before; corrected in 1.21",
        cap_after_mask,
    ),
)  # fmt: skip


def flaws_of(version: str, case: str) -> list[Flaw]:
    """What is wrong with the data of a case; empty for most."""
    return [flaw for flaw in FLAWS if version in flaw.versions and re.fullmatch(flaw.cases, case)]
