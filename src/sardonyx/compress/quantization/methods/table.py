"""The methods of quantization by name."""

from __future__ import annotations

from collections.abc import Mapping

from sardonyx.compress.quantization.steps import Method

METHODS: Mapping[str, Method] = {
    method.name: method
    for method in (Method("nearest", "the nearest integer at the scale of the least squared error"),)
}
"""The methods of ``quantize(method=…)``, by name."""
