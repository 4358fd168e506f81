from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import sardonyx
from sardonyx import demo
from sardonyx.errors import ModelFileError
from sardonyx.report import optimization_page
from sardonyx.report.latency import Latency
from sardonyx.report.summary import Summary
from sardonyx.rewrite.record import Report

TIMING = Latency(
    (0.002, 0.001), 0.5, 6, "an engine", {"batch": 2}, ((0.002, 0.0021, 0.002) * 2, (0.001, 0.0011, 0.001) * 2)
)


@pytest.fixture(scope="module")
def parts() -> tuple[Report, Summary, Summary]:
    path = demo.path("digits_classifier")
    result = sardonyx.optimize(path)
    return result.report, sardonyx.summary(path), sardonyx.summary(result.model)


class Balanced(HTMLParser):
    """Parser that asserts that every element is closed in order."""

    VOID = ("meta", "br", "!doctype")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_self_contained(parts: tuple[Report, Summary, Summary]) -> None:
    page = optimization_page.page("a & b.onnx", *parts, TIMING)
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    assert "a &amp; b.onnx" in page
    assert not re.search(r"https?://|<script|<link|src=|@import|url\(", page)


def test_the_page_shows_the_report(parts: tuple[Report, Summary, Summary]) -> None:
    report, before, after = parts
    page = optimization_page.page("model.onnx", *parts, TIMING)
    for word in (*report.by_pass(), *before.operators, "proved", "2.000 ms", "-50.0 %", "batch=2"):
        assert word in page
    assert page.count("<svg") == 2
    assert page.count("<circle") == 12
    bars = optimization_page.operator_bars(before.operators, after.operators)
    assert bars.count("<rect") == 2 * len({*before.operators, *after.operators})


def test_the_latency_row_is_consistent_with_its_change(parts: tuple[Report, Summary, Summary]) -> None:
    # Drift: the unpaired medians rise by 3 %, while every pair falls by 11 %.
    drifting = Latency((0.0089, 0.0092), 0.89, 6, "an engine", {}, ((0.0100,) * 6, (0.0089,) * 6))
    page = optimization_page.page("model.onnx", *parts, drifting)
    (row,) = re.findall(r"<tr><td>latency</td>(.*?)</tr>", page)
    before, after, change = re.findall(r"<td[^>]*>([^<]*)</td>", row)
    assert (before, after, change) == ("8.900 ms", "7.921 ms", "-11.0 %")
    assert "after is before × the median ratio of the pairs" in page


def test_bars_are_proportional_to_the_counts() -> None:
    bars = optimization_page.operator_bars({"Conv": 4}, {"Conv": 1})
    first, second = map(float, re.findall(r'<rect[^>]* width="([\d.]+)"', bars))
    assert first == pytest.approx(4 * second)


def test_missing_latency_is_explained(parts: tuple[Report, Summary, Summary]) -> None:
    page = optimization_page.page("model.onnx", *parts, "no engine <here>")
    assert "no engine &lt;here&gt;" in page
    assert page.count("<svg") == 1


def test_an_unwritable_path_is_refused(parts: tuple[Report, Summary, Summary], tmp_path: Path) -> None:
    with pytest.raises(ModelFileError):
        optimization_page.write(tmp_path / "absent" / "report.html", "model.onnx", *parts, TIMING)
