"""What the tables say of an optimization."""

from __future__ import annotations

from onnx import parser

from sardonyx.report.tables import fired
from sardonyx.rewrite.engine import Site
from sardonyx.rewrite.language import APPROXIMATES, REGISTRY, Expr, Result, rule
from sardonyx.rewrite.optimize import optimize


def test_a_pass_is_told_by_those_of_its_rules_that_fired_and_by_the_least_that_they_promise() -> None:
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (float16[2] x, float[2] z) => (float16[2] y, float[2] w) {
            a = Cast<to = 1>(x)
            y = Cast<to = 10>(a)
            b = Tanh(z)
            w = Tanh(b)
        }"""
    )

    @rule("fuse_by_hand", on="Tanh", exactness=APPROXIMATES)
    def halved(s: Site) -> Result:
        """Tanh as a rule of a file's own."""
        return Expr(("Sigmoid",), (s.node.inputs[0],), {})

    report = optimize(model, rules=[halved], verify=False).report
    rows = {row[0]: row[1:] for row in fired(report)}
    assert rows["fuse_by_hand"] == ("2", "0", "approximates", "Tanh as a rule of a file's own.")
    times, saved, promise, text = rows["eliminate_nop_cast"]
    assert (times, saved, promise) == ("1", "1", "exact")
    assert "CastLike" not in text and "Cast" in text
    del REGISTRY["fuse_by_hand"]
    assert {row[0]: row[4] for row in fired(report)}["fuse_by_hand"] == "A rule of your own."
