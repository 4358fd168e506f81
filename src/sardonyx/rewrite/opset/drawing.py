"""Operators that draw random numbers: ``Bernoulli`` by a comparison with uniform numbers."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.rewrite.opset.site import Site
from sardonyx.rewrite.opset.table import down


@down("Bernoulli", version=15)
def compare_uniform_numbers(site: Site) -> None:
    """Answer 1 where a uniform number is below the probability.

    The function body of the standard compares the other way, which draws 1 with the probability ``1 - p``. Numbers are
    drawn in double precision by a node of the same name and seed, so that the draws are those of the original.
    """
    p = site.required(0)
    kind = ir.DataType(site.integer("dtype", int(site.dtype(p))))
    seed = {name: site.node.attributes[name] for name in ("seed",) if site.has(name)}
    drawn = site.emit("RandomUniformLike", p, dtype=int(ir.DataType.DOUBLE), low=0.0, high=1.0, **seed)
    node = drawn.producer()
    assert node is not None
    node.name = site.node.name or site.node.outputs[0].name
    node.meta.update(site.node.meta)
    site.replace(site.cast(site.emit("Less", drawn, site.cast(p, ir.DataType.DOUBLE)), kind))
