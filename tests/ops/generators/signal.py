"""Cases of Fourier transforms and of windows in time."""

from __future__ import annotations

import numpy as np

from tests.ops.generators.draw import FLOATS, Case, Draw, scalar
from tests.ops.generators.table import draws


@draws("DFT")
def fourier(draw: Draw, name: str) -> Case:
    shape = (draw.integer(1, 2), *[draw.integer(2, 5) for _ in range(draw.integer(1, 2))])
    x = draw.array((*shape, draw.pick(1, 2)), draw.pick(*FLOATS), special=False)
    axis, length = draw.integer(1, len(shape) - 1), draw.maybe(lambda: scalar(draw.integer(2, 6)), 0.4)
    options = {"inverse": draw.integer(0, 1)}
    if x.shape[-1] == 1 and not options["inverse"]:
        options["onesided"] = draw.integer(0, 1)
    if draw.chance(0.5):
        return Case(name, 17, [x, length], options | {"axis": axis})
    return Case(name, 20, [x, length, scalar(axis)], options)


@draws("STFT")
def short_time(draw: Draw, name: str) -> Case:
    length, frame, step = draw.integer(8, 12), draw.integer(3, 6), draw.integer(1, 4)
    signal = draw.array((draw.integer(1, 2), length, 1), special=False)
    window = draw.maybe(lambda: draw.positive((frame,)), 0.7)
    return Case(name, 17, [signal, scalar(step), window, scalar(frame)], draw.options(onesided=draw.integer(0, 1)))


@draws("HannWindow", "HammingWindow", "BlackmanWindow")
def window(draw: Draw, name: str) -> Case:
    options = draw.options(periodic=draw.integer(0, 1), output_datatype=draw.pick(1, 11))
    return Case(name, 17, [scalar(draw.integer(2, 12), draw.pick(np.int32, np.int64))], options)


@draws("MelWeightMatrix")
def mel(draw: Draw, name: str) -> Case:
    rate = draw.pick(8000, 16000)
    low, high = float(draw.integer(0, 500)), rate / 2 - draw.integer(0, 500)
    inputs = [scalar(draw.integer(2, 8)), scalar(draw.pick(32, 64)), scalar(rate)]
    return Case(name, 17, [*inputs, scalar(low, np.float32), scalar(high, np.float32)])
