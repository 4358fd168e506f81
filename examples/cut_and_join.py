"""Cut the classifier of the package in two, rename the tensor between the parts, and join the parts.

python examples/cut_and_join.py
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

import sardonyx
from sardonyx import demo
from sardonyx.rewrite.evaluate import evaluate


def main() -> ir.Model:
    whole = sardonyx.load(demo.path("digits_classifier"))
    pooled = next(node for node in whole.graph if node.op_type == "AveragePool").outputs[0].name
    assert pooled is not None
    backbone = sardonyx.rename(sardonyx.extract(whole, [pooled]), {pooled: "features"})
    head = sardonyx.rename(sardonyx.extract(whole, ["probabilities"], [pooled]), {pooled: "x"})
    joined = sardonyx.merge([backbone, head], {"features": "x"})
    feeds = demo.inputs("digits_classifier")
    answers = evaluate(sardonyx.to_proto(joined), feeds)["probabilities"]
    print("largest difference:", np.abs(answers - demo.outputs("digits_classifier")["probabilities"]).max())
    return joined


if __name__ == "__main__":
    main()
