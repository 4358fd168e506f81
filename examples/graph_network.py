"""A graph neural network: one session, compiled once, for any number of nodes and edges.

    python examples/graph_network.py

Nodes are handwritten digits; edges lead from each digit to the most similar ones. The network computes the mean over
neighbours twice (simple graph convolution, Wu et al. 2019) and classifies; its weights are a logistic regression of the
same features on other digits. Needs `scikit-learn`.
"""

from __future__ import annotations

import numpy as np
import onnx
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import kneighbors_graph

import sardonyx

HOPS = 2

NETWORK = """<ir_version: 10, opset_import: ["": 21, "graph": 1]>
network (float[nodes, features] x, int64[2, edges] edge_index) => (float[nodes, classes] scores, int64[nodes] label) {
    h = graph.Mean(x, edge_index)
    g = graph.Mean(h, edge_index)
    scores = Gemm(g, weights, bias)
    label = ArgMax <axis = 1, keepdims = 0> (scores)
}
<domain: "graph", opset_import: ["": 21]>
Mean (x, edge_index) => (mean) {
    zero = Constant <value_int = 0> ()
    one = Constant <value_int = 1> ()
    column = Constant <value_ints = [1]> ()
    source = Gather(edge_index, zero)
    target = Gather(edge_index, one)
    sent = Gather(x, source)
    shape = Shape(sent)
    rows = Unsqueeze(target, column)
    indices = Expand(rows, shape)
    sum = ScatterElements <axis = 0, reduction = "add"> (x, indices, sent)
    nothing = Sub(x, x)
    unit = Constant <value_float = 1.0> ()
    own = Add(nothing, unit)
    counts = Expand(unit, shape)
    degree = ScatterElements <axis = 0, reduction = "add"> (own, indices, counts)
    mean = Div(sum, degree)
}"""
"""Messages are gathered along edges and added at the targets, as in exports of graph libraries."""


def graph_of(images: np.ndarray, neighbours: int) -> np.ndarray:
    """Return edges (2, count) int64, source and target: each node receives from its nearest nodes."""
    towards, source = kneighbors_graph(images, neighbours).nonzero()
    return np.stack([source, towards]).astype(np.int64)


def mean_of_neighbours(x: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the result of `graph.Mean`, for training."""
    total, degree = x.copy(), np.ones(len(x), np.float32)
    np.add.at(total, edges[1], x[edges[0]])
    np.add.at(degree, edges[1], 1)
    return total / degree[:, None]


def trained(images: np.ndarray, labels: np.ndarray) -> onnx.ModelProto:
    """Return the network with weights fitted to these digits."""
    x, edges = images, graph_of(images, 5)
    for _ in range(HOPS):
        x = mean_of_neighbours(x, edges)
    fitted = LogisticRegression(max_iter=1000).fit(x, labels)
    model = onnx.parser.parse_model(NETWORK)
    for name, array in (("weights", fitted.coef_.T), ("bias", fitted.intercept_)):
        model.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    return model


def main() -> list[float]:
    """Classify graphs of many sizes; return the share of correct nodes of each graph."""
    digits = load_digits()
    images, labels = (digits.images.reshape(-1, 64) / 16).astype(np.float32), digits.target
    session = sardonyx.Session(trained(images[:600], labels[:600]), compile="wait")
    rng = np.random.default_rng(0)
    right = []
    for nodes, neighbours in ((300, 5), (40, 3), (1000, 4), (77, 8), (1, 0), (640, 2)):
        chosen = 600 + rng.permutation(len(images) - 600)[:nodes]
        edges = graph_of(images[chosen], neighbours) if neighbours else np.zeros((2, 0), np.int64)
        _, label = session.run(None, {"x": images[chosen], "edge_index": edges})
        right.append(float((label == labels[chosen]).mean()))
        print(f"{nodes:5} nodes, {edges.shape[1]:5} edges: {right[-1]:.1%} correct")
    print(f"{len(session.native.program.launches) if session.native else 0} kernels, compiled once")
    return right


if __name__ == "__main__":
    main()
