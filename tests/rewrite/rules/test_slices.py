"""Random graphs for Slices, Concats, Splits and Gathers."""

from __future__ import annotations

import numpy as np
import pytest

from tests.rewrite.fuzz import GraphMaker, generator, run_many

END = 2**63 - 1


def bounds(g: GraphMaker, size: int) -> tuple[int, int, int]:
    """Return a range along one axis, from every corner that Slice allows."""
    step = g.pick([1, 1, 1, 2, 3, -1, -2])
    start, end = g.int(-size - 1, size + 1), g.pick([END, size, g.int(-size - 1, size + 2)])
    if step < 0:
        start, end = g.pick([(size - 1, -END), (END, -END), (g.int(0, size), g.int(-size - 2, size))])
    elif g.chance(0.4):
        start = 0
    return start, end, step


def sliced(g: GraphMaker, x: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """Return a Slice of ``x`` along one or two axes, and the shape of the result."""
    axes = sorted(int(a) for a in g.rng.choice(len(shape), g.int(1, min(2, len(shape))), replace=False))
    spans = [bounds(g, shape[axis]) for axis in axes]
    out = list(shape)
    for axis, (start, end, step) in zip(axes, spans, strict=True):
        out[axis] = len(range(shape[axis])[slice(start, None if step < 0 and end < -shape[axis] else end, step)])
    written = [axis - len(shape) if g.chance(0.3) else axis for axis in axes]
    plain = all(step == 1 for *_, step in spans)
    steps = None if plain and g.chance() else g.ints(*(step for *_, step in spans))
    starts, ends = g.ints(*(start for start, *_ in spans)), g.ints(*(end for _, end, _ in spans))
    return g.node("Slice", x, starts, ends, g.ints(*written), steps), tuple(out)


@generator("eliminate_nop_slice", "fuse_consecutive_slices")
def slices(g: GraphMaker) -> None:
    shape = g.shape(rank=g.int(1, 3), high=6)
    y, between = sliced(g, g.input(shape), shape)
    g.read_again(y)
    if g.chance(0.3):
        g.output(sliced(g, y, between)[0])
    z, _ = sliced(g, y, between)
    g.output(z)


@generator("fuse_slices_into_split", "eliminate_split_concat/concat_of_adjacent_slices")
def partitions(g: GraphMaker) -> None:
    shape = g.shape(rank=g.int(1, 3), zero=0)
    axis = g.int(0, len(shape) - 1)
    sizes = [g.int(1, 3) for _ in range(g.int(2, 4))]
    shape = (*shape[:axis], sum(sizes) + g.int(0, 5) // 5, *shape[axis + 1 :])
    x = g.input(shape, dynamic=g.chance(0.1))
    parts, start = [], 0
    for i, size in enumerate(sizes):
        end = END if i == len(sizes) - 1 and g.chance() else start + size
        on = axis - len(shape) if g.chance() else axis
        parts.append(g.node("Slice", x, g.ints(start), g.ints(end), g.ints(on)))
        start += size
        if g.chance(0.1):
            parts.append(g.node("Slice", x, g.ints(start - size), g.ints(end), g.ints(axis)))
    for part in parts:
        g.read_again(part, 0.1)
    if g.chance():
        g.output(g.node("Concat", *parts[: 1 + g.int(1, len(parts))], axis=axis if g.chance() else axis - len(shape)))
    else:
        g.output(*(g.node("Relu", part) for part in parts))


@generator(
    "eliminate_nop_concat",
    "fuse_consecutive_concats",
    "eliminate_split_concat/split_of_concat",
    "eliminate_slice_of_concat",
    "eliminate_gather_of_concat",
)
def concats(g: GraphMaker) -> None:
    shape = g.shape(rank=g.int(1, 3), zero=0)
    axis = g.int(0, len(shape) - 1)

    def part() -> tuple[str, int]:
        size = g.pick([0, 1, 1, 2, 3])
        return g.input((*shape[:axis], size, *shape[axis + 1 :]), dynamic=g.chance(0.2)), size

    def written() -> int:
        return axis - len(shape) if g.chance(0.3) else axis

    parts = [part() for _ in range(g.int(1, 4))]
    sizes = [size for _, size in parts]
    y = g.node("Concat", *(name for name, _ in parts), axis=written())
    g.read_again(y)
    match g.pick(["nested", "Split", "Slice", "Gather", "Relu"]):
        case "nested":
            around = [y, part()[0]]
            other = g.int(0, len(shape) - 1) if g.chance(0.2) and len(set(shape)) == 1 else axis
            g.output(
                g.node("Concat", *(around if g.chance() else around[::-1]), axis=other if other != axis else written())
            )
        case "Split" if len(sizes) > 1:
            split_sizes = sizes if g.chance(0.7) else [sum(sizes), *[0] * (len(sizes) - 1)]
            g.output(*g.node("Split", y, g.ints(*split_sizes), axis=written(), n_outputs=len(sizes)))
        case "Slice":
            at = g.int(0, len(sizes) - 1)
            start = sum(sizes[:at])
            g.output(g.node("Slice", y, g.ints(start), g.ints(start + sizes[at] + g.int(0, 3) // 3), g.ints(written())))
        case "Gather" if sum(sizes):
            at = g.int(-sum(sizes), sum(sizes) - 1)
            g.output(g.node("Gather", y, g.const(np.array(at if g.chance(0.8) else [at])), axis=written()))
        case _:
            g.output(g.node("Relu", y))


@generator("eliminate_nop_split", "eliminate_split_concat/concat_of_all_parts")
def splits(g: GraphMaker) -> None:
    shape = g.shape(rank=g.int(1, 3), zero=0)
    axis = g.int(0, len(shape) - 1)
    sizes = [g.int(1, 3) for _ in range(g.int(1, 3))]
    x = g.input((*shape[:axis], sum(sizes), *shape[axis + 1 :]))
    parts = g.node("Split", x, g.ints(*sizes), axis=g.maybe(axis) if axis == 0 else axis, n_outputs=len(sizes))
    parts = [parts] if len(sizes) == 1 else list(parts)
    g.read_again(parts[0])
    if g.chance(0.3):
        parts.reverse()
    g.output(g.node("Concat", *parts, axis=axis - len(shape) if g.chance() else axis))


@generator("fuse_gathers_into_split")
def gathered_partitions(g: GraphMaker) -> None:
    sizes = [g.int(1, 3) for _ in range(g.int(2, 4))]
    rank = g.int(1, 3)
    axis, whole = g.int(0, rank - 1), sum(sizes) + g.int(0, 5) // 5
    shape = (*g.shape(axis, zero=0), whole, *g.shape(rank - axis - 1, zero=0))
    x, start = g.input(shape, dynamic=g.chance(0.1)), 0
    for size in sizes:
        indices = np.arange(start, start + size) - (whole if g.chance(0.3) else 0)
        if g.chance(0.08):
            indices = indices[::-1].copy()
        if g.chance(0.2):
            part = g.node("Slice", x, g.ints(start), g.ints(start + size), g.ints(axis))
        else:
            on = g.pick([axis, axis - rank])
            part = g.node("Gather", x, g.const(indices, g.pick(["int64", "int64", "int32"])), axis=on)
        g.output(part if g.chance() else g.node("Abs", part))
        start += size


@generator("eliminate_nop_gather", "fuse_gather_unsqueeze")
def gathers(g: GraphMaker) -> None:
    shape = g.shape(rank=g.int(1, 3), zero=0)
    axis = g.int(0, len(shape) - 1)
    x = g.input(shape)
    if g.chance():
        order = np.arange(shape[axis]) - (shape[axis] if g.chance(0.3) else 0)
        indices = order if g.chance(0.7) else order[::-1].copy()
        y = g.node("Gather", x, g.const(indices), axis=axis)
        g.read_again(y)
        g.output(g.node("Relu", y))
        return
    y = g.node(
        "Gather", x, g.const(np.array(g.int(-shape[axis], shape[axis] - 1))), axis=g.pick([axis, axis - len(shape)])
    )
    g.read_again(y)
    at = axis if g.chance(0.7) else g.int(0, len(shape) - 1)
    g.output(g.node("Unsqueeze", y, g.ints(at if g.chance() else at - len(shape))))


LABELS = [
    "eliminate_nop_slice",
    "fuse_consecutive_slices",
    "fuse_slices_into_split",
    "fuse_gathers_into_split",
    "eliminate_split_concat/concat_of_adjacent_slices",
    "eliminate_split_concat/concat_of_all_parts",
    "eliminate_split_concat/split_of_concat",
    "eliminate_slice_of_concat",
    "eliminate_gather_of_concat",
    "eliminate_nop_concat",
    "fuse_consecutive_concats",
    "eliminate_nop_split",
    "eliminate_nop_gather",
    "fuse_gather_unsqueeze",
]


@pytest.mark.parametrize("label", LABELS)
def test_outputs_stay_equal(label: str) -> None:
    run_many(label, 200 if label == "fuse_gathers_into_split" else 60)
