"""Pruned models beside the original with zeros in place of the removed channels."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnx import numpy_helper

import sardonyx
from sardonyx.compress.pruning.operators import find_channels
from sardonyx.compress.pruning.scores import score_channels
from sardonyx.compress.pruning.shrink import choose_channels, free_channels, remove_channels, stays_after
from sardonyx.compress.pruning.sizes import join_lists, separate_lists, state_split_sizes
from sardonyx.model import load
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.inference import infer_shapes


def pruned_and_masked(source: onnx.ModelProto, share: float, *, heads: bool = False) -> tuple[bytes, bytes, int]:
    """Return the model without channels, the original with zeros where these were read, and their number."""
    model = load(source)
    infer_shapes(model)
    state_split_sizes(model)
    separate_lists(model)
    graph = find_channels(model)
    graph.balance(score_channels(graph, None))
    removed = choose_channels(graph, score_channels(graph, None), share, free_channels(graph, heads=heads))
    originals = {}
    read = {root for cut in graph.cuts if cut.role == "consumer" for root in graph.roots(cut.ids).tolist()}
    for cut in graph.cuts:
        value, stays = cut.constant, stays_after(graph, cut.ids, removed)
        # Channels that no weight reads are summed over by a product: zero where they are computed.
        unread = cut.role == "producer" and not read & set(graph.roots(cut.ids).tolist())
        # A state that no gate computes from anything is zero in all steps.
        is_state = cut.node.op_type in ("LSTM", "GRU", "RNN") and (cut.index, cut.axis) != (1, 2)
        if cut.role == "consumer" or is_state or unread:
            array = facts.constant(value)
            assert array is not None
            originals.setdefault(value, value.const_value)
            value.const_value = ir.tensor(np.where(cut.mask(array, stays), array, np.float32(0)), name=value.name)
    masked = sardonyx.to_proto(model).SerializeToString()
    for value, tensor in originals.items():
        value.const_value = tensor
    remove_channels(model, graph, removed)
    join_lists(model)
    result = sardonyx.to_proto(model)
    onnx.checker.check_model(result, full_check=True)
    return result.SerializeToString(), masked, len(removed)


def answers(model: bytes, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Return the output on two engines."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    native = sardonyx.Session(model, compile="wait").run(None, feeds)[0]
    return [session.run(None, feeds)[0], np.asarray(native)]


def drawn(source: onnx.ModelProto, batch: int) -> dict[str, np.ndarray]:
    """Return feeds of a network, with 5 rows of sequences; integers are rows of a table of 40."""
    rng = np.random.default_rng(batch)
    feeds: dict[str, np.ndarray] = {}
    for value in source.graph.input:
        dims = value.type.tensor_type.shape.dim
        shape = [dim.dim_value or {"N": batch, "T": 5}[dim.dim_param] for dim in dims]
        is_float = value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
        drawn = rng.standard_normal(shape).astype(np.float32) if is_float else rng.integers(0, 40, shape)
        feeds[value.name] = drawn
    return feeds


def weights(model: bytes) -> list[np.ndarray]:
    """Return the weights of a model, flat."""
    tensors = (numpy_helper.to_array(one) for one in onnx.load_from_string(model).graph.initializer)
    return [one.reshape(-1) for one in tensors if one.dtype == np.float32]
