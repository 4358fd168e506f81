"""A user-defined rule; also for `sardonyx optimize model.onnx --rules examples/own_rule.py`.

python examples/own_rule.py
"""

from __future__ import annotations

import onnx

import sardonyx
from sardonyx.rewrite.language import EXACT, Rewrite, V
from sardonyx.rewrite.notation import Relu


@sardonyx.rule("eliminate_repeated_relu", exactness=EXACT)
def relu_of_relu(x: V) -> Rewrite:
    """Replace Relu of Relu by Relu."""
    return Relu(Relu(x)) >> Relu(x)


def main() -> sardonyx.Optimized:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> twice (float[N] x) => (float[N] y) { h = Relu(x) y = Relu(h) }'
    )
    result = sardonyx.optimize(model, passes=[], rules=[relu_of_relu])
    print([node.op_type for node in result.model.graph], result.report.verdict.status)
    return result


if __name__ == "__main__":
    main()
