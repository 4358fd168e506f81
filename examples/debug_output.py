"""Add debug outputs to a running session: the magnitudes of each layer for a bright image.

python examples/debug_output.py
"""

from __future__ import annotations

import numpy as np

import sardonyx
from sardonyx import Node, demo


def main() -> dict[str, float]:
    """Return the factor by which the largest magnitude after each convolution grows for the bright image."""
    session = sardonyx.Session(demo.path("digits_classifier"), compile="wait")
    image = demo.inputs("digits_classifier")["image"][:16]
    served = session.run(None, {"image": image})[0]
    watched = [str(node.outputs[0].name) for node in session.model.graph if node.op_type == "Conv"]
    # One edit: the next call has all of the outputs, a running call has none of them.
    with session.edit() as g:
        for number, tensor in enumerate(watched):
            g.add_node(Node("Abs", inputs=[tensor], outputs=[f"magnitude_{number}"]))
            g.add_node(Node("ReduceMax", inputs=[f"magnitude_{number}"], outputs=[f"largest_{number}"], keepdims=0))
            g.add_output(f"largest_{number}")
    usual = session.run(None, {"image": image})
    bright = session.run(None, {"image": image * 20})
    np.testing.assert_allclose(usual[0], served, rtol=1e-4, atol=1e-6)  # The first output is unchanged.
    grown = {
        tensor: float(after / before) for tensor, before, after in zip(watched, usual[1:], bright[1:], strict=True)
    }
    for tensor, factor in grown.items():
        print(f"{factor:7.1f} × {tensor}")
    # A single request by name needs no edit.
    (features,) = session.run([watched[-1]], {"image": image})
    print(f"{len(session.get_outputs())} outputs; the last watched tensor is {features.dtype}{list(features.shape)}")
    session.undo()
    print(f"after undo: {[output.name for output in session.get_outputs()]}")
    return grown


if __name__ == "__main__":
    main()
