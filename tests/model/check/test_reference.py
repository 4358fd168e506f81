"""The reference page agrees with the registry."""

from __future__ import annotations

from pathlib import Path

from sardonyx.model.check.reference import reference_page

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "check.md"


def test_page_is_current() -> None:
    remedy = "python -m sardonyx.model.check.reference > docs/reference/check.md"
    assert PAGE.read_text() == reference_page(), f"run: {remedy}"
