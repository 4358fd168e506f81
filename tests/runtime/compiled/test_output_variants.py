"""Calls for few outputs get a program without the others, if these are large."""

from __future__ import annotations

import threading

import numpy as np
import onnx

import sardonyx

ROWS, COLUMNS = 256, 256


def session_of(rows: int = ROWS) -> sardonyx.Session:
    text = f"""<ir_version: 9, opset_import: ["": 18]> net (float[{rows}, {COLUMNS}] x) => (y, z, w)
        {{ z = Exp (x)  w = Sin (z)  y = ReduceSum <keepdims = 0> (z) }}"""
    return sardonyx.Session(onnx.parser.parse_model(text), compile="wait")


def finish_compiling() -> None:
    for thread in threading.enumerate():
        if thread.name == "sardonyx-compile":
            thread.join()


def variants(session: sardonyx.Session) -> list[str]:
    return list(dict.fromkeys(arena.where for arena in session.memory().plans if arena.where))


def test_a_variant_computes_few_outputs() -> None:
    session = session_of()
    feeds = {"x": np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)}
    whole = dict(zip(("y", "z", "w"), session.run(None, feeds), strict=True))
    for names in (["y"], ["w", "y"], ["z", "w", "y"], ["y", "y"]):
        for _ in range(4):
            for name, result in zip(names, session.run(names, feeds), strict=True):
                np.testing.assert_allclose(result, whole[name], rtol=1e-5)
            finish_compiling()
    assert variants(session) == ["with y as outputs", "with w, y as outputs"]
    assert session.run([], feeds) == []


def test_small_outputs_need_no_variant() -> None:
    session = session_of(4)
    for _ in range(4):
        session.run(["y"], {"x": np.ones((4, COLUMNS), np.float32)})
    finish_compiling()
    assert variants(session) == []
