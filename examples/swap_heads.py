"""A service that swaps its model's head under load: each call is answered by one of the heads.

python examples/swap_heads.py
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx

import sardonyx
from sardonyx import demo

POOLED = "/classifier/AveragePool_output_0"
"""The features of the classifier in the package, 40 channels of 2 by 2."""

FEATURES = 160


def head(classes: int) -> onnx.ModelProto:
    """Return a classifier of pooled features, with random weights in place of trained ones."""
    rng = np.random.default_rng(classes)
    nodes = [
        onnx.helper.make_node("Flatten", ["features"], ["flat"]),
        onnx.helper.make_node("MatMul", ["flat", "weights"], ["scores"]),
        onnx.helper.make_node("Softmax", ["scores"], ["classes"]),
    ]
    features = onnx.helper.make_tensor_value_info("features", onnx.TensorProto.FLOAT, None)
    classified = onnx.helper.make_tensor_value_info("classes", onnx.TensorProto.FLOAT, ["N", classes])
    weights = onnx.numpy_helper.from_array(rng.standard_normal((FEATURES, classes)).astype(np.float32), "weights")
    graph = onnx.helper.make_graph(nodes, "head", [features], [classified], [weights])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


def main() -> list[int]:
    """Swap heads while threads call; return the numbers of classes in one thread's results, in order."""
    session = sardonyx.Session(demo.path("digits_classifier"), compile="wait")
    feeds = demo.inputs("digits_classifier")
    over = threading.Event()

    def serve() -> list[int]:
        answered = []
        while not over.is_set():
            (classes,) = session.run(None, feeds)
            np.testing.assert_allclose(classes.sum(1), 1, rtol=1e-4)
            answered.append(classes.shape[-1])
        return answered

    with ThreadPoolExecutor(4) as threads:
        serving = [threads.submit(serve) for _ in range(4)]
        try:
            current = POOLED  # The original head: everything computed from the features.
            for classes in (4, 20, 7):
                with session.edit() as g:
                    g.detach(current)
                    current = g.attach(head(classes), at=POOLED)
        finally:
            over.set()
        answers = [future.result() for future in serving]
    seen = list(dict.fromkeys(answers[0]))
    print(f"{sum(map(len, answers))} answers, of {seen} classes; {len(session.history)} edits, no call failed")
    return seen


if __name__ == "__main__":
    main()
