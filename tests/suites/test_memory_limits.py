"""Public models under a limit on memory: what they need is enough, and with 60 % of it each call fails and says so."""

from __future__ import annotations

import random
from typing import Any

import onnx_ir as ir
import pytest

from sardonyx.errors import ResourceError
from sardonyx.model import load
from sardonyx.runtime import Session
from tests.suites.left_out import JUDGED_APART
from tests.suites.real_models import REAL, REAL_FOLDER, assert_agrees, stored

QUICK = ("silero_vad", "yolov3_post")
"""Models that are run by default, with choices and loops in them; ``-m long`` runs all."""


def shared(name: str) -> dict[str, Any]:
    """Options by which some nodes, drawn, are numpy's."""
    nodes = [node for node in load(REAL_FOLDER / f"{name}.onnx").graph if node.op_type != "Constant"]
    names = {node.outputs[0].name for node in random.Random(0).sample(nodes, min(3, len(nodes)))}

    def is_drawn(node: ir.Node) -> bool:
        return node.outputs[0].name in names

    return {"pins": [(is_drawn, "reference")]}


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in QUICK else pytest.mark.long) for n in REAL if n not in JUDGED_APART],
)
def test_each_call_that_needs_more_fails(name: str, is_shared: bool) -> None:
    options = shared(name) if is_shared else {}

    def under_limit(most: int | None) -> Session:
        return Session(REAL_FOLDER / f"{name}.onnx", compile="wait", threads=1, max_memory=most, **options)

    feeds, expected = stored(name, "in::"), stored(name, "out::")
    free = under_limit(None)
    outputs = [info.name for info in free.get_outputs()]
    first = free.run(None, feeds)
    for output, actual in zip(outputs, first, strict=True):
        if output in expected:
            assert_agrees(actual, expected[output], 1e-3, 1e-4)
    need = free.memory().peak
    assert_agrees(under_limit(need).run(None, feeds), first, 0, 0)
    limited = under_limit(need * 6 // 10)
    for _ in range(3):
        with pytest.raises(ResourceError, match=f" {need * 6 // 10:,} "):
            limited.run(None, feeds)
