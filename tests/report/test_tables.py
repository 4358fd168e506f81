"""What the tables say of an optimization."""

from __future__ import annotations

from onnx import parser

from sardonyx import demo
from sardonyx.report.latency import Latency
from sardonyx.report.summary import summary
from sardonyx.report.tables import before_and_after, explanation, fired, verdict_line
from sardonyx.rewrite.engine import Site
from sardonyx.rewrite.language import APPROXIMATES, REGISTRY, Expr, Result, rule
from sardonyx.rewrite.optimize import optimize
from sardonyx.rewrite.record import Report
from sardonyx.rewrite.verify import Verdict


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


def test_a_change_of_latency_comes_with_what_it_may_as_well_be() -> None:
    found = summary(demo.path("digits_classifier"))
    times = ((1.0,) * 6, (0.9, 0.95, 1.0, 1.05, 1.1, 1.2))
    known = {"engine": "an engine", "sizes": {f"n{i}": i for i in range(6)}, "runs": 6}
    measured = Latency((1.0, 1.02), 1.02, times=times, **known)  # type: ignore[arg-type]
    assert before_and_after(found, found, measured).caption == (
        "Latency: an engine, median of 6 paired runs, -10.0 % to +20.0 % with 95 % confidence,"
        " at n0=0, n1=1, n2=2, n3=3, 2 more"
    )
    few = Latency((1.0, 1.02), 1.02, times=tuple(each[:5] for each in times), **known)  # type: ignore[arg-type]
    assert "confidence" not in str(before_and_after(found, found, few).caption)


def test_a_verdict_spells_out_few_sizes() -> None:
    report = Report.begin(optimize(demo.path("digits_classifier"), verify=False).model, 0, "portable")
    report.verdict = Verdict("proved", samples=4, sizes=({f"n{i}": 1 for i in range(6)},) * 4, exact=True)
    each = "n0=1, n1=1, n2=1, n3=1, 2 more"
    assert (
        verdict_line(report).plain == f"✓ proved: 4 samples at sizes {'; '.join([each] * 3)}; and 1 more, equal bits."
    )


def test_no_table_is_made_of_no_near_matches() -> None:
    report = optimize(
        parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Tanh(x) }'),
        verify=False,
    ).report
    assert str(explanation(report)) == "Near matches that did not fire: none."
