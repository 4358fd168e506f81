"""Tables of an optimization."""

from __future__ import annotations

import io

from onnx import parser
from rich.console import Console

from sardonyx import demo
from sardonyx.report.latency import Latency
from sardonyx.report.optimization_page import page
from sardonyx.report.optimization_tables import before_and_after, explanation, fired_passes, latency_row, verdict_line
from sardonyx.report.summary import summary
from sardonyx.rewrite.engine.engine import Site
from sardonyx.rewrite.language import APPROXIMATES, REGISTRY, Expr, Result, rule
from sardonyx.rewrite.optimize import optimize
from sardonyx.rewrite.record import Report
from sardonyx.rewrite.verify import Verdict


def test_a_pass_is_described_by_its_fired_rules_and_their_weakest_promise() -> None:
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
    rows = {row[0]: row[1:] for row in fired_passes(report)}
    assert rows["fuse_by_hand"] == ("2", "0", "approximates", "Tanh as a rule of a file's own.")
    times, saved, promise, text = rows["eliminate_nop_cast"]
    assert (times, saved, promise) == ("1", "1", "exact")
    assert "CastLike" not in text and "Cast" in text
    del REGISTRY["fuse_by_hand"]
    assert {row[0]: row[4] for row in fired_passes(report)}["fuse_by_hand"] == "A rule of your own."


def test_the_latency_row_is_consistent_with_its_change() -> None:
    info = summary(demo.path("digits_classifier"))
    # Drift: the unpaired medians rise by 3 %, while every pair falls by 11 %.
    drifting = Latency((0.0089, 0.0092), 0.89, 6, "an engine", {}, ((0.0100,) * 6, (0.0089,) * 6))
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(before_and_after(info, info, drifting))
    (row,) = [line for line in console.export_text().splitlines() if line.startswith("│ latency")]
    assert [cell.strip() for cell in row.strip("│").split("│")] == ["latency", "8.900 ms", "7.921 ms", "-11.0 %"]


def test_noise_is_no_change_of_latency() -> None:
    info = summary(demo.path("digits_classifier"))
    noisy = Latency((0.052, 0.053), 1.147, 6, "an engine", {}, ((1.0,) * 6, (0.98, 1.1, 1.14, 1.15, 1.2, 1.33)))
    assert not noisy.is_significant
    assert latency_row(noisy) == ("52.000 ms", "—", "no change measured")
    assert "between -2.0 % and +33.0 % with 95 % confidence" in str(before_and_after(info, info, noisy).caption)
    report = optimize(demo.path("digits_classifier"), verify=False).report
    written = page("net.onnx", report, info, info, noisy)
    assert "no change measured" in written and "14.7" not in written
    assert noisy.as_dict()["significant"] is False
    slower = Latency((0.052, 0.053), 1.147, 6, "an engine", {}, ((1.0,) * 6, (1.1, 1.1, 1.14, 1.15, 1.2, 1.33)))
    assert latency_row(slower) == ("52.000 ms", "59.644 ms", "+14.7 %")
    few = Latency((0.052, 0.03), 0.57, 5, "an engine", {}, ((1.0,) * 5, (0.57,) * 5))
    assert latency_row(few)[2] == "no change measured"
    assert "5 paired runs, too few for a result" in str(before_and_after(info, info, few).caption)


def test_a_change_of_latency_has_a_confidence_interval() -> None:
    info = summary(demo.path("digits_classifier"))
    times = ((1.0,) * 6, (1.02, 1.05, 1.1, 1.15, 1.1, 1.2))
    known = {"engine": "an engine", "sizes": {f"n{i}": i for i in range(6)}, "runs": 6}
    measured = Latency((1.0, 1.02), 1.1, times=times, **known)  # type: ignore[arg-type]
    assert before_and_after(info, info, measured).caption == (
        "Latency: an engine, 6 paired runs; after is before × the median ratio of the pairs,"
        " +2.0 % to +20.0 % with 95 % confidence, at n0=0, n1=1, n2=2, n3=3, 2 more"
    )
    few = Latency((1.0, 1.02), 1.02, times=tuple(side[:5] for side in times), **known)  # type: ignore[arg-type]
    assert "confidence" not in str(before_and_after(info, info, few).caption)


def test_a_verdict_spells_out_few_sizes() -> None:
    report = Report.begin(optimize(demo.path("digits_classifier"), verify=False).model, 0, "portable")
    report.verdict = Verdict("proved", samples=4, sizes=({f"n{i}": 1 for i in range(6)},) * 4, exact=True)
    sizes = "; ".join(["n0=1, n1=1, n2=1, n3=1, 2 more"] * 3)
    assert verdict_line(report).plain == f"✓ proved on 4 samples at sizes {sizes}; and 1 more: equal bits."


def test_an_explanation_without_near_matches_is_one_line() -> None:
    report = optimize(
        parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Tanh(x) }'),
        verify=False,
    ).report
    assert str(explanation(report)) == "Near matches that did not fire: none."
