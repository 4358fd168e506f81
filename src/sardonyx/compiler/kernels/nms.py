"""Non-maximum suppression of the boxes of one category.

Scores become integer keys in the order of selection: by score, NaN last, then by box number. A heap returns one box
after the other; each box is compared with all selected boxes, one vector at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sardonyx.compiler.llvm.ir_builder import Emitter
from sardonyx.compiler.llvm.vector_value import Vector
from sardonyx.core.dim import Size, ceil_div

_FIELDS = 5
"""Floats stored of a selected box: its lower and upper corner, and its area."""

_KEY_BYTES = 8


@dataclass(frozen=True)
class Boxes:
    """The boxes of an image and their scores for a category.

    Attributes:
        boxes: Pointer to four floats for each box.
        scores: Pointer to a float for each box.
        count: Number of boxes, less than 2**32.
        centered: True if a box is its centre and extents, False if two corners.
        limit: Largest number of boxes to select.
        overlap: Boxes with a larger intersection over union with a selected box are suppressed.
        threshold: Only boxes with larger scores are selected; None: all.
    """

    boxes: str
    scores: str
    count: str | int
    centered: bool
    limit: str
    overlap: str
    threshold: str | None


def heap_bytes(boxes: Size) -> Size:
    """Return the bytes of the keys of all boxes and a sentinel."""
    return ceil_div((boxes + 1) * _KEY_BYTES, 64) * 64


def scratch_bytes(boxes: Size, chosen: Size, lanes: int) -> Size:
    """Return the bytes of the heap and, in whole vectors, the selected boxes."""
    return heap_bytes(boxes) + ceil_div(chosen, lanes) * lanes * _FIELDS * 4


def write_suppression(e: Emitter, inputs: Boxes, heap: str, selected: str, picks: str, lanes: int) -> str:
    """Write the selection.

    Args:
        e: The IR builder.
        inputs: The boxes.
        heap: Address of the heap, :func:`heap_bytes` bytes.
        selected: Address of the selected boxes.
        picks: Address of the numbers of the selected boxes, i64, in order of selection.
        lanes: Floats of a vector.

    Returns:
        The number of selected boxes.
    """
    return _Writer(e, inputs, heap, selected, picks, lanes).write()


class _Writer:
    def __init__(self, e: Emitter, inputs: Boxes, heap: str, selected: str, picks: str, lanes: int) -> None:
        self.e = e
        self.inputs = inputs
        self.heap = heap
        self.selected = selected
        self.picks = picks
        self.lanes = lanes
        self.left = e.variable("i64", "0")
        self.chosen = e.variable("i64", "0")

    def write(self) -> str:
        e = self.e
        is_positive = e.let(f"icmp sgt i64 {self.inputs.limit}, 0")
        with e.when(is_positive):
            self._collect()
            half = e.let(f"lshr i64 {self.left.get()}, 1")
            with e.loop(0, half) as i:
                self._sink(str(e.sub(e.sub(half, 1), i)))
        with e.repeat(self._goes_on):
            self._select_next()
        return self.chosen.get()

    def _goes_on(self) -> str:
        e = self.e
        some = e.let(f"icmp sgt i64 {self.left.get()}, 0")
        return e.let(f"and i1 {some}, {e.let(f'icmp slt i64 {self.chosen.get()}, {self.inputs.limit}')}")

    # The heap.

    def _key(self, at: str | int) -> str:
        return self.e.load("i64", self.e.address(self.heap, "i64", at), 8)

    def _put(self, at: str | int, key: str) -> None:
        self.e.store("i64", key, self.e.address(self.heap, "i64", at), 8)

    def _collect(self) -> None:
        """Emit the keys of the boxes whose scores are above the threshold, and a sentinel, the smallest key."""
        e = self.e
        with e.loop(0, self.inputs.count) as i:
            score = e.load("float", e.address(self.inputs.scores, "float", i), 4)
            to = self.left.get()
            self._put(to, self._ordered(score, i))
            step = "1"
            if self.inputs.threshold is not None:
                above = e.let(f"fcmp ogt float {score}, {self.inputs.threshold}")
                step = e.let(f"zext i1 {above} to i64")
            self.left.set(str(e.add(to, step)))
        self._put(self.left.get(), "0")

    def _ordered(self, score: str, number: str) -> str:
        """Return the key of a box, greater for boxes to select first; never 0."""
        e = self.e
        # Adding 0 turns -0 into +0.
        bits = e.let(f"bitcast float {e.let(f'fadd float {score}, 0.0')} to i32")
        below = e.let(f"ashr i32 {bits}, 31")
        ordered = e.let(f"xor i32 {bits}, {e.let(f'or i32 {below}, -2147483648')}")
        is_nan = e.let(f"fcmp uno float {score}, {score}")
        upper = e.let(f"zext i32 {e.let(f'select i1 {is_nan}, i32 0, i32 {ordered}')} to i64")
        lower = e.let(f"xor i64 {number}, {(1 << 32) - 1}")
        return e.let(f"or i64 {e.let(f'shl i64 {upper}, 32')}, {lower}")

    def _sink(self, start: str) -> None:
        """Sift a key down until neither child is greater."""
        e = self.e
        key, at = self._key(start), e.variable("i64", start)
        child = e.variable("i64")

        def goes_on() -> str:
            left = e.add(e.mul(at.get(), 2), 1)
            inside = e.let(f"icmp slt i64 {left}, {self.left.get()}")
            # The sentinel after the last key makes it valid to read a right child that does not exist.
            left = e.let(f"select i1 {inside}, i64 {left}, i64 0")
            is_right = e.let(f"icmp ugt i64 {self._key(e.add(left, 1))}, {self._key(left)}")
            right = e.let(f"and i1 {is_right}, {inside}")
            child.set(str(e.add(left, e.let(f"zext i1 {right} to i64"))))
            greater = e.let(f"icmp ugt i64 {self._key(child.get())}, {key}")
            return e.let(f"and i1 {inside}, {greater}")

        with e.repeat(goes_on):
            self._put(at.get(), self._key(child.get()))
            at.set(child.get())
        self._put(at.get(), key)

    def _pop(self) -> str:
        """Remove the greatest key; return the number of its box."""
        e = self.e
        key = self._key(0)
        last = str(e.sub(self.left.get(), 1))
        self.left.set(last)
        self._put(0, self._key(last))
        self._put(last, "0")
        with e.when(e.let(f"icmp sgt i64 {last}, 0")):
            self._sink("0")
        return e.let(f"xor i64 {e.let(f'and i64 {key}, {(1 << 32) - 1}')}, {(1 << 32) - 1}")

    # The boxes.

    def _select_next(self) -> None:
        """Emit the selection of the next box, unless a selected box overlaps."""
        e, lanes = self.e, self.lanes
        number = self._pop()
        box = self._box(number)
        suppressed, chunk = e.variable("i1", "false"), e.variable("ptr", self.selected)
        bytes_ = 4 * lanes * _FIELDS
        count = self.chosen.get()
        end = e.address(self.selected, "i8", e.mul(e.div(e.add(count, lanes - 1), lanes), bytes_))

        def goes_on() -> str:
            more = e.let(f"icmp ult ptr {chunk.get()}, {end}")
            return e.let(f"and i1 {more}, {e.let(f'xor i1 {suppressed.get()}, true')}")

        with e.repeat(goes_on):
            suppressed.set(self._overlaps(box, chunk.get()))
            chunk.set(e.address(chunk.get(), "i8", bytes_))
        with e.when(e.let(f"xor i1 {suppressed.get()}, true")):
            self._append(number, box, count, end)

    def _append(self, number: str, box: list[Vector], count: str, end: str) -> None:
        e, lanes = self.e, self.lanes
        lane = e.rem(count, lanes)
        # The unused lanes of a new vector hold boxes without area, which overlap nothing.
        with e.when(e.let(f"icmp eq i64 {lane}, 0")), e.loop(0, _FIELDS * lanes) as at:
            e.store("float", box[0].like(0).name, e.address(end, "float", at), 4)
        chunk = e.address(self.selected, "float", e.mul(e.div(count, lanes), lanes * _FIELDS))
        for field, value in enumerate(box):
            e.store("float", value.name, e.address(chunk, "float", e.add(lane, field * lanes)), 4)
        e.store("i64", number, e.address(self.picks, "i64", count), 8)
        self.chosen.set(str(e.add(count, 1)))

    def _box(self, number: str) -> list[Vector]:
        """Return top, left, bottom, right and area of a box; the area is NaN if any coordinate is NaN."""
        e = self.e
        at = e.address(self.inputs.boxes, "float", e.mul(number, 4))
        a, b, c, d = (Vector(e, e.load("float", e.address(at, "float", i), 4), "float", 1) for i in range(4))
        if self.inputs.centered:
            low, high = [a - c / 2, b - d / 2], [a + c / 2, b + d / 2]
        else:
            low, high = [a.below(c), b.below(d)], [a.above(c), b.above(d)]
        area = (high[0] - low[0]) * (high[1] - low[1])
        broken = (a.is_nan() | b.is_nan()) | (c.is_nan() | d.is_nan())
        return [*low, *high, broken.where(area.like(math.nan), area)]

    def _overlaps(self, box: list[Vector], chunk: str) -> str:
        """Return an i1: true if a box overlaps any of a vector of boxes."""
        e, lanes = self.e, self.lanes
        others = [
            Vector(e, e.load(f"<{lanes} x float>", e.address(chunk, "float", at * lanes), 4), "float", lanes)
            for at in range(_FIELDS)
        ]
        mine = [Vector(e, e.spread(value.name, lanes, "float"), "float", lanes) for value in box]
        tall = mine[2].below(others[2]) - mine[0].above(others[0])
        wide = mine[3].below(others[3]) - mine[1].above(others[1])
        common = (tall > 0).where(tall, 0) * (wide > 0).where(wide, 0)
        union = mine[4] + others[4] - common
        solid = ((common > 0) & (mine[4] > 0)) & ((others[4] > 0) & (union > 0))
        limit = Vector(e, e.spread(self.inputs.overlap, lanes, "float"), "float", lanes)
        return (solid & (common / union > limit)).any()
