"""Kernels whose results of several types are written in transposed tiles."""

from __future__ import annotations

import numpy as np
import onnx.parser

from sardonyx import Session


def test_regions_of_open_count_are_compiled_whole() -> None:
    """The coordinates of regions are floats and their bounds are truth values, of three columns each."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 16]>
        g (float[N, C, H, W] x, float[R, 4] rois, int64[R] images) => (y)
        { y = RoiAlign <output_height = 2, output_width = 1, sampling_ratio = 3> (x, rois, images) }""")
    session = Session(model, compile="wait", threads=1)
    rng = np.random.default_rng(0)
    for count in (1, 3, 8, 17):
        feeds = {
            "x": rng.standard_normal((2, 3, 8, 7), np.float32),
            "rois": rng.uniform(-2, 9, (count, 4)).astype(np.float32),
            "images": rng.integers(0, 2, count),
        }
        (expected,) = Session(model, compile="off").run(None, feeds)
        np.testing.assert_allclose(session.run(None, feeds)[0], expected, rtol=1e-5, atol=1e-6)
