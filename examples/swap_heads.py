"""A service that swaps its model's head under load, and a session that grows a debug output.

python examples/swap_heads.py
"""

from __future__ import annotations

import threading

import numpy as np
import onnx

import sardonyx
from sardonyx import Node, demo

POOLED = "/classifier/AveragePool_output_0"
"""The features of the shipped classifier, 40 channels of 2 by 2."""

FEATURES = 160


def head(classes: int) -> onnx.ModelProto:
    """A classifier of pooled features, with weights as a trainer might give them."""
    rng = np.random.default_rng(classes)
    nodes = [
        onnx.helper.make_node("Flatten", ["features"], ["flat"]),
        onnx.helper.make_node("MatMul", ["flat", "weights"], ["scores"]),
        onnx.helper.make_node("Softmax", ["scores"], ["classes"]),
    ]
    given = onnx.helper.make_tensor_value_info("features", onnx.TensorProto.FLOAT, None)
    made = onnx.helper.make_tensor_value_info("classes", onnx.TensorProto.FLOAT, ["N", classes])
    weights = onnx.numpy_helper.from_array(rng.standard_normal((FEATURES, classes)).astype(np.float32), "weights")
    graph = onnx.helper.make_graph(nodes, "head", [given], [made], [weights])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


def main() -> list[int]:
    """Swap heads while threads call; returns the classes that were answered with, in the order of one thread."""
    session = sardonyx.Session(demo.path("digits_classifier"), compile="wait")
    feeds = demo.inputs("digits_classifier")
    answered: list[int] = []
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            answered.append(session.run(None, feeds)[0].shape[-1])

    threads = [threading.Thread(target=serve) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        current = POOLED  # The head that it was trained with is all that is computed from the features.
        for classes in (4, 20, 7):
            with session.edit() as g:
                g.detach(current)
                current = g.attach(head(classes), at=POOLED)
        # What does the network see? A tensor from inside, seen by the next call.
        with session.edit() as g:
            g.add_node(Node("ReduceMax", inputs=[POOLED], outputs=["strongest"], keepdims=0))
            g.add_output("strongest")
        print("the strongest feature:", session.run(None, feeds)[1])
    finally:
        over.set()
        for thread in threads:
            thread.join()
    print(f"{len(answered)} answers, of {list(dict.fromkeys(answered))} classes; {len(session.history)} edits")
    return list(dict.fromkeys(answered))


if __name__ == "__main__":
    main()
