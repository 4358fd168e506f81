from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import sardonyx
from sardonyx import demo
from sardonyx.errors import ModelFileError
from sardonyx.report import html
from sardonyx.report.latency import Latency
from sardonyx.report.summary import Summary
from sardonyx.rewrite.record import Report

TIMING = Latency((0.002, 0.001), 0.5, 3, "an engine", {"batch": 2}, ((0.002, 0.0021, 0.002), (0.001, 0.0011, 0.001)))


@pytest.fixture(scope="module")
def parts() -> tuple[Report, Summary, Summary]:
    path = demo.path("digits_classifier")
    result = sardonyx.optimize(path)
    return result.report, sardonyx.summary(path), sardonyx.summary(result.model)


class Balanced(HTMLParser):
    """Checks that every element is closed where it was opened."""

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


def test_the_page_is_whole_and_needs_nothing_from_elsewhere(parts: tuple[Report, Summary, Summary]) -> None:
    page = html.page("a & b.onnx", *parts, TIMING)
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    assert "a &amp; b.onnx" in page
    assert not re.search(r"https?://|<script|<link|src=|@import|url\(", page)


def test_it_tells_what_the_report_tells(parts: tuple[Report, Summary, Summary]) -> None:
    report, before, after = parts
    page = html.page("model.onnx", *parts, TIMING)
    for word in (*report.by_pass(), *before.operators, "proved", "2.000 ms", "-50.0 %", "batch=2"):
        assert word in page
    assert page.count("<svg") == 2
    assert page.count("<circle") == 6
    bars = html.operator_bars(before.operators, after.operators)
    assert bars.count("<rect") == 2 * len({*before.operators, *after.operators})


def test_bars_are_as_long_as_the_numbers() -> None:
    bars = html.operator_bars({"Conv": 4}, {"Conv": 1})
    first, second = map(float, re.findall(r'<rect[^>]* width="([\d.]+)"', bars))
    assert first == pytest.approx(4 * second)


def test_latency_that_was_not_measured(parts: tuple[Report, Summary, Summary]) -> None:
    page = html.page("model.onnx", *parts, "no engine <here>")
    assert "no engine &lt;here&gt;" in page
    assert page.count("<svg") == 1


def test_a_place_that_cannot_be_written(parts: tuple[Report, Summary, Summary], tmp_path: Path) -> None:
    with pytest.raises(ModelFileError):
        html.write(tmp_path / "absent" / "report.html", "model.onnx", *parts, TIMING)
