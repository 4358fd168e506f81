"""A refused change leaves the draft of an edit as it was: its caller may go on with other changes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
import pytest
from tests.random_cases import cases

import sardonyx
from sardonyx import Node
from sardonyx.errors import EditError, RequestError, SardonyxError, TypeMismatchError
from sardonyx.model.save import to_proto
from sardonyx.runtime.editing.draft import Draft

NET = """<ir_version: 9, opset_import: ["": 18]>
net (float[N, 4] x) => (float[N, 2] y) <float[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}, float[2] b = {1, 2}>
{ h = MatMul(x, w) y = Add(h, b) }"""


def draft() -> Draft:
    return Draft(sardonyx.load(onnx.parser.parse_model(NET)))


def state(one: Draft) -> Any:
    return to_proto(one.model).SerializeToString(deterministic=True), list(one.changes), one.is_structural


@pytest.mark.parametrize(
    "change",
    [
        lambda e: e.replace_node("h", Node("Gemm", inputs=["x", "w"], outputs=["other"], domain="com.example")),
        lambda e: e.replace_node("h", Node("Relu", inputs=["h"], outputs=["other"], domain="com.example")),
        lambda e: e.add_node(Node("Relu", inputs=["h"], domain="com.example", alpha=object())),
        lambda e: e.insert_after("y", "Relu", domain="com.example", alpha=object()),
        lambda e: e.insert_after("h", "Relu", alpha=object()),
        lambda e: e.update_weights({"b": np.zeros(2, np.float32), "w": np.zeros(8)}),
        lambda e: e.update_weights({"b": np.zeros(2, np.float32), "none": np.zeros(8, np.float32)}),
        lambda e: e.set_weight("b", np.zeros(2)),
        lambda e: e.add_input("z", "float32", [-1]),
        lambda e: e.remove_node("h"),
        lambda e: e.detach("none"),
    ],
)  # fmt: skip
def test_a_refused_change_leaves_the_draft_as_it_was(change: Callable[[Draft], Any]) -> None:
    one = draft()
    before = state(one)
    with pytest.raises((EditError, TypeMismatchError)):
        change(one)
    assert state(one) == before


class Watched:
    """The verbs of a draft, which compare the draft before and after each refusal."""

    def __init__(self, one: Draft) -> None:
        self._draft = one
        self.refused = 0
        self.changed: list[str] = []

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            before = state(self._draft)
            try:
                return getattr(self._draft, verb)(*arguments, **named)
            except SardonyxError as error:
                self.refused += 1
                if state(self._draft) != before:
                    self.changed.append(f"{verb} {arguments} {named}: {error}")
                raise

        return call


class Sessions:
    """In place of a session: an edit of a draft that nobody commits."""

    revision = 0

    def __init__(self, watched: Watched) -> None:
        self._watched = watched

    @contextmanager
    def edit(self) -> Iterator[Watched]:
        yield self._watched


def test_drawn_changes_that_are_refused_leave_the_draft_as_it_was() -> None:
    pytest.importorskip("msgspec", reason="msgspec is not installed (extra: serve)")
    from tests.serve.drawn_edits import drawn_edit

    from sardonyx.serve.operations.live_edits import edit

    refused = 0
    for number in range(cases(1500)):
        watched = Watched(draft())
        session: Any = Sessions(watched)
        try:
            edit(session, drawn_edit(random.Random(number)))
        except (SardonyxError, RequestError):
            refused += watched.refused
        assert not watched.changed, number
    assert refused
