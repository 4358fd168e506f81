"""From groups to kernels: what each kernel reads, computes and writes, as LLVM IR and the arguments of its launch."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

from sardonyx.base.cancellation import raise_if_cancelled
from sardonyx.compiler.analysis.axis_collapsing import fused, walked_alike
from sardonyx.compiler.analysis.control_flow import CONTROL, results_of
from sardonyx.compiler.analysis.primitive_traits import EXTREMA, ORDERED, Rows, dtype_of
from sardonyx.compiler.analysis.slice_scatter import box
from sardonyx.compiler.analysis.strided_views import Memory, shape_of
from sardonyx.compiler.analysis.tree_ensembles import TABLES, tree_sum
from sardonyx.compiler.codegen import load_store
from sardonyx.compiler.codegen.element_reader import Element, Place, Reader
from sardonyx.compiler.codegen.kernel_builder import Index
from sardonyx.compiler.codegen.loop_nest import (
    Axis,
    RowNest,
    Unfusable,
    bound_at,
    masked,
    nest_axes,
    put,
    reduce_row,
    stored,
    work_items,
)
from sardonyx.compiler.codegen.tiled_transpose import block_items, blocks_of
from sardonyx.compiler.kernels.trees import Forest, leaves_bytes, leaves_of_few, scratch_bytes, tree_sums
from sardonyx.compiler.lower.attention import write_attention
from sardonyx.compiler.lower.bounded_output import picked
from sardonyx.compiler.lower.context import Whole, Writing
from sardonyx.compiler.lower.convolution import ImageKernel, describe_pooling
from sardonyx.compiler.lower.generic_loops import plain
from sardonyx.compiler.lower.launch import Body, Launch, Prepared, Relaid, Scratch, Stage
from sardonyx.compiler.lower.matmul import Contraction
from sardonyx.compiler.lower.row_algorithms import fourier_tables, lanes_for, ordered
from sardonyx.compiler.lower.row_passes import RowPasses
from sardonyx.compiler.lower.scatter import updated
from sardonyx.compiler.schedule.groups import Group, operations
from sardonyx.compiler.schedule.layout_assignment import row_channels
from sardonyx.compiler.tiling.pooling import choose_pooling
from sardonyx.core.dim import Size, at_least, ceil_div, dim_max, dim_min, floor_div
from sardonyx.core.ir.graph import Function, Value, bodies_of
from sardonyx.errors import UnsupportedError

_CHEAP_MAP = 4
"""Operations of a map whose elements count as one element's work; more make work items of fewer elements."""


_CHEAP_ROWS = 8
"""Operations of a kernel of rows that leave registers for several vectors of sums."""

_TURNING = frozenset({"permute", "reverse", "slice", "gather"})
"""Movements behind which neighbours may lie apart."""

_BESIDE = 8
"""Vectors of 32 bits that are reduced side by side."""


class Lowering:
    """Lowers the groups of a schedule.

    Args:
        whole: What is known of the whole function, the schedule among it.
        body: Lowers the body of a loop, or a branch.
        written: Told of each kernel when it is written.

    Attributes:
        launches: The kernels, in order.
        unfusable: Values that have to be in memory, other than the schedule has it.
        refused: Values that there is no kernel for.
    """

    def __init__(self, whole: Whole, body: Callable[[Function, bool], Body], written: Callable[[Launch], None]) -> None:
        self.whole = whole
        self.schedule, self.target, self.blocks, self.threads = (
            whole.schedule, whole.target, whole.blocks, whole.threads
        )  # fmt: skip
        self._body = body
        self.launches: list[Launch] = []
        self.unfusable: dict[Value, str] = {}
        self.refused: dict[Value, str] = {}
        for group in whole.schedule.groups:
            raise_if_cancelled()
            try:
                found = self.lowered(group)
            except Unfusable as refusal:
                self.unfusable[refusal.value] = "it is read at other places than where it is computed"
            except UnsupportedError as error:
                self.refused[group.anchor or group.root] = error.problem
            else:
                self.launches += found
                for launch in found:
                    written(launch)

    @property
    def function(self) -> Function:
        """The function whose groups are lowered."""
        return self.whole.function

    def lowered(self, group: Group) -> list[Launch]:
        """The kernels of a group.

        Raises:
            Unfusable: A member has to be in memory.
            UnsupportedError: There is no kernel for it.
        """
        if group.anchor is not None:
            if group.anchor in self.schedule.attentions:
                w = Writing(self.whole, group)
                items = write_attention(w, self.schedule.attentions[group.anchor])
                return [w.launch(items, "attention")]
            if group.anchor.op in ORDERED:
                return self._ordered(group, group.anchor)
            try:
                return self._by_template(group, group.anchor)
            except UnsupportedError:
                return [self._plain(group, group.anchor)]
        if group.root.op == "call":
            return self._trees(group)
        if group.root.op in CONTROL:
            return [self._control(group)]
        if group.root.op == "host":
            return self._counted(group)
        if group.root.op == "concat":
            return self._concat(group)
        if group.root.op == "pad":
            return self._pad(group)
        if group.root.op == "scatter":
            return self._scatter(group)
        if any(member.op == "reduce" for member in group.members):
            return [self._rows(group)]
        return [self._map(group)]

    def _by_template(self, group: Group, anchor: Value) -> list[Launch]:
        return [self._contract(group, anchor)] if anchor.op == "contract" else self._image(group, anchor)

    def _plain(self, group: Group, anchor: Value) -> Launch:
        """A contraction for which there is no template."""
        w = Writing(self.whole, group)
        reader, root, memory = w.reader, group.root, w.located(group.root)
        compute = plain(w, anchor)
        image = next((each for each in self.schedule.convolutions.values() if each.core is anchor), None)

        def body(place: list[Index]) -> None:
            if image is None:
                value, at = anchor, place
            else:
                value = image.result
                number, channel, *spatial = place
                of_group, feature = reader.split(channel, w.kernel.size(shape_of(anchor)[2]))
                at = [of_group, number, feature, *spatial]
            reader.bind(value, bound_at(value, tuple(place), compute(at)))
            stored(reader, root, memory, tuple(place))

        return w.launch(self._over(w, root, memory, shape_of(root), body, lambda axis: False), anchor.op)

    def _ordered(self, group: Group, anchor: Value) -> list[Launch]:
        found = []
        if anchor.op == "fft":
            w = Writing(self.whole, group, 1)
            found.append(w.launch(fourier_tables(w, anchor), "fft tables"))
        w = Writing(self.whole, group, lanes_for(anchor, self.target.lanes(32)))
        return [*found, w.launch(ordered(w, anchor), anchor.op)]

    def _control(self, group: Group) -> Launch:
        """A loop or a choice: its operands and results are buffers, its body is lowered by itself."""
        root = group.root
        for operand in root.operands:
            if operand.op not in ("constant", "dims"):
                self.whole.require_memory(operand)
        bodies = tuple(self._body(each, root.op == "loop") for each in bodies_of(root))
        return Launch("", (), (*root.operands, *results_of(root)), (), 1, root, root.op, group, bodies)

    def _counted(self, group: Group) -> list[Launch]:
        for operand in group.root.operands:
            if not operand.is_constant:
                self.whole.require_memory(operand)
        return picked(group.root, lambda: Writing(self.whole, group, 1), self.target.lanes(32))

    def _trees(self, group: Group) -> list[Launch]:
        x = group.root.operands[0]
        self.whole.require_memory(x)
        (total,) = results_of(group.root)
        rows, found = shape_of(x)[0], []
        w = Writing(self.whole, group, 1)
        forest = self._forest(w, group.root)
        leaves = Stage(group.root, leaves_bytes(forest, rows)) if forest.is_shared else None
        if leaves is not None:
            scratch = w.pointer(Scratch(forest.row_stride))
            items = leaves_of_few(w.kernel, forest, w.pointer(x), w.pointer(leaves), scratch, rows)
            found.append(w.launch(items, "leaves", total))
            w = Writing(self.whole, group, 1)
            forest = self._forest(w, group.root)
        scratch = w.pointer(Scratch(scratch_bytes(w.kernel, forest, rows, self.threads)))
        items = tree_sums(
            w.kernel, forest, w.pointer(x), w.pointer(total), scratch, rows, self.threads,
            None if leaves is None else w.pointer(leaves),
        )  # fmt: skip
        return [*found, w.launch(items, "trees", total)]

    def _forest(self, w: Writing, call: Value) -> Forest:
        ensemble = tree_sum(call)
        assert ensemble is not None
        arrays = {name: getattr(ensemble, name) for name in TABLES}
        tables = {
            name: w.pointer(Prepared(call, name, lambda _, array=array: array))  # type: ignore[misc]
            for name, array in arrays.items()
        }
        return Forest(
            **tables, trees=ensemble.trees, tile=ensemble.tile(self.target), features=ensemble.features,
            column_count=len(ensemble.columns), targets=ensemble.targets, shallow=ensemble.shallow,
        )  # fmt: skip

    # Maps.

    def _map(self, group: Group) -> Launch:
        w = Writing(self.whole, group)
        memory = w.located(group.root)
        walked = group.root if memory.block else self._walked(w, group.root)
        memory = dataclasses.replace(memory, shape=shape_of(walked))

        def body(place: list[Index]) -> None:
            stored(w.reader, walked, memory, tuple(place))

        work = max(1, operations(group.members) // _CHEAP_MAP)
        return w.launch(self._over(w, walked, memory, memory.shape, body, work=work), "map")

    def _walked(self, w: Writing, root: Value) -> Value:
        """The value whose places are gone over where a root is written: in row-major order it lies as its reshapes do.

        It is another than the root where rows of the root are joined of rows that no whole number of vectors fills:
        places of the root would be divided lane by lane. Very short rows are gone over where blocks turn them.
        """
        value, lanes = root, w.reader.lanes
        while value.op == "reshape":
            value = value.operands[0]
        shape = shape_of(value)
        last = next((size for size in reversed(shape) if size != 1), 1)
        if value is root or (isinstance(last, int) and last % lanes == 0):
            return root
        if isinstance(last, int) and last < lanes // 2:
            memory = dataclasses.replace(w.located(root), shape=shape)
            loops = nest_axes(shape, range(len(shape)), lambda a, b: self._alike(w, value, a))

            def body(place: list[Index]) -> None:
                stored(w.reader, value, memory, tuple(place))

            return root if blocks_of(w.reader, value, w.memory, loops, len(shape), body) is None else value
        return value

    def _over(
        self, w: Writing, value: Value, memory: Memory, shape: Sequence[Size], body: Callable[[list[Index]], None],
        whole: Callable[[int], bool] = lambda axis: True, alike: Callable[[int], bool] | None = None, work: int = 1,
    ) -> Size:  # fmt: skip
        """Write the nest over a value's elements, or some of them, in the order of where they are written."""
        rank = len(shape)
        if all(size == 1 for size in shape):
            # There is one element: nothing to share out among lanes.
            w.reader.lanes = 1
        walk = alike or (lambda axis: self._alike(w, value, axis))
        if memory.block:
            loops = [Axis((0,), shape[0]), Axis((1,), ceil_div(shape[1], memory.block), memory.block)]
            loops = [axis for axis in loops if axis.block or axis.size != 1]
            spatial = nest_axes(shape, range(2, rank), lambda a, b: walk(a) and whole(b))
            return work_items(
                w.reader, [*loops, *spatial], rank, memory.block * work, False, self._channels(w, shape[1], body)
            )
        loops = nest_axes(shape, range(rank), lambda a, b: walk(a) and whole(b))
        if (blocks := blocks_of(w.reader, value, w.memory, loops, rank, body)) is not None:
            return block_items(w.reader, loops, blocks, rank, body)
        is_short = bool(loops) and isinstance(loops[-1].size, int) and loops[-1].size <= w.reader.lanes // 2
        if is_short and not operations(w.group.members) and not self.target.has_masks:
            # A store of some lanes takes longer than one of each.
            w.reader.lanes = 1
        picks = any(each.op == "gather" and at is None for each, at in fused(value, w.memory))
        before = functools.partial(self._pick, w.reader, loops, body) if loops and picks else None
        return work_items(w.reader, loops, rank, work, True, body, again=True, before=before)

    def _pick(
        self, reader: Reader, loops: Sequence[Axis], body: Callable[[list[Index]], None], place: list[Index]
    ) -> None:
        """Read the indices of a row that are the same along it, which LLVM leaves in the loop."""
        here, same, bases = list(place), list[tuple[Value, Place]](), {index.base for index in place}

        def told(value: Value, at: Place) -> None:
            if all(index.is_uniform and (index.base in bases or isinstance(index.base, int)) for index in at):
                same.append((value, at))

        put(here, loops[-1], Index("%lane", 1, reader.lanes))
        reader.on_gather = told
        with reader.trial():
            body(here)
        reader.on_gather = None
        for value, at in same:
            reader.picked(value, at)

    def _channels(
        self, w: Writing, channels: Size, body: Callable[[list[Index]], None]
    ) -> Callable[[list[Index]], None]:
        """The body with its lanes masked to the channels that there are."""
        block = w.reader.lanes
        if isinstance(channels, int) and channels % block == 0:
            return body

        def some(place: list[Index]) -> None:
            e = w.kernel.emitter
            left = e.sub(w.kernel.size(channels), place[1].base)
            with masked(w.reader, e.lanes_below(e.least(left, block), block)):
                body(place)

        return some

    def _alike(self, w: Writing, value: Value, axis: int) -> bool:
        return walked_alike(value, axis, w.memory, ())

    # Regions.

    def _concat(self, group: Group) -> list[Launch]:
        root, axis = group.root, group.root.params["axis"]
        start: Size = 0
        found = []
        for operand in root.operands:
            shape = shape_of(operand)
            found.append(self._region(group, operand, shape, {axis: (start, 1)}, {}))
            start = start + shape[axis]
        return found

    def _pad(self, group: Group) -> list[Launch]:
        root = group.root
        source, filling = root.operands
        low, high, interior = (root.params[name] for name in ("low", "high", "interior"))
        sizes: list[Size] = []
        to: dict[int, tuple[Size, int]] = {}
        since: dict[int, Size] = {}
        for axis, size in enumerate(shape_of(source)):
            step, start = interior[axis] + 1, low[axis]
            if not (at_least(low[axis], 0) and at_least(high[axis], 0)):
                first = ceil_div(dim_max(-low[axis], 0), step)
                start = low[axis] + first * step
                last = floor_div(shape_of(root)[axis] - 1 - start, step)
                size = dim_max(dim_min(size - first, last + 1), 0)
                since[axis] = first
            sizes.append(size)
            if start != 0 or step != 1:
                to[axis] = (start, step)
        w = Writing(self.whole, group)
        memory = w.located(root)

        def fill(place: list[Index]) -> None:
            w.reader.store(memory, tuple(place), w.reader.element(filling, ()))

        items = self._over(w, filling, memory, shape_of(root), fill, alike=lambda axis: True)
        return [w.launch(items, "fill"), self._region(group, source, tuple(sizes), to, since)]

    def _scatter(self, group: Group) -> list[Launch]:
        """A copy of what is written into, then the updates of one scatter after the other."""
        chain = [group.root]
        while chain[0].operands[0].op == "scatter" and chain[0].operands[0] in group.members:
            chain.insert(0, chain[0].operands[0])
        found = [self._region(group, chain[0].operands[0], shape_of(group.root), {}, {})]
        for value in chain:
            part = box(value)
            if part is not None:
                lines = enumerate(zip(part.starts, part.steps, strict=True))
                to = {axis: line for axis, line in lines if line != (0, 1)}
                updates = value.operands[2]
                found.append(self._region(group, updates, shape_of(updates), to, {}))
                continue
            w = Writing(self.whole, group)
            found.append(w.launch(updated(w, value), "scatter"))
        return found

    def _region(
        self,
        group: Group,
        value: Value,
        sizes: Sequence[Size],
        to: Mapping[int, tuple[Size, int]],
        since: Mapping[int, Size],
    ) -> Launch:
        """Write a part of the root: elements of a value, from ``since`` on, to ``start + step * place``."""
        w = Writing(self.whole, group)
        memory = w.located(group.root)
        reader = w.reader

        def body(place: list[Index]) -> None:
            source, goal = list(place), list(place)
            for axis, first in since.items():
                source[axis] = reader.shifted(place[axis], w.kernel.size(first))
            for axis, (start, step) in to.items():
                goal[axis] = reader.shifted(reader.times(place[axis], step), w.kernel.size(start))
            reader.store(memory, tuple(goal), reader.element(value, tuple(source)))

        full = shape_of(group.root)
        whole = [sizes[axis] == full[axis] and axis not in {**to, **since} for axis in range(len(sizes))]
        dense = [to.get(axis, (0, 1))[1] == 1 for axis in range(len(sizes))]
        items = self._over(w, value, memory, sizes, body, lambda axis: whole[axis] and dense[axis - 1])
        return w.launch(items, f"part of {group.root.op}")

    # Rows.

    def _rows(self, group: Group) -> Launch:
        assert group.rows is not None
        rows = group.rows
        reductions = [value for value in self.schedule.order if value in group.members and value.op == "reduce"]
        channels = row_channels(group, self.blocks)
        w = Writing(self.whole, group, None if channels else self._beside(group, rows, reductions))
        reader, root = w.reader, group.root
        memory = w.located(root)
        elementwise = shape_of(root) == rows.shape and root not in reductions

        def together(axis: int, following: int) -> bool:
            if (axis in rows.axes) != (following in rows.axes):
                return False
            read = [value.operands[0] for value in reductions] + ([root] if elementwise else [])
            fits = not memory.block or axis >= 2
            return fits and all(walked_alike(each, axis, w.memory, reductions) for each in read)

        nest = RowNest(reader, rows, together, channels)
        if not elementwise and len(nest.outer) > 0:
            # A row's place in the root is told axis by axis.
            nest = RowNest(reader, rows, lambda a, b: together(a, b) if a in rows.axes else False, channels)

        levels = self._levels(reductions)
        taken = [[value.operands[0] for value in level] for level in levels]
        passes = RowPasses(w, nest, rows, [*taken, [root]] if elementwise else taken, keeps=not channels)

        def row(place: list[Index]) -> None:
            for number, level in enumerate(levels):
                passes.begin(number, place)
                reduce_row(nest, place, level)
            if elementwise:
                passes.begin(len(levels), place)
                nest.elements(place, lambda here: stored(reader, root, memory, tuple(here)))
            else:
                at = reader.reshaped(nest.result_position(place), rows.kept, shape_of(root))
                stored(reader, root, memory, at)

        whole = self._channels(w, rows.shape[1], row) if channels and 1 not in rows.axes else row
        items = nest.items(whole)
        return w.launch(items, "rows")

    def _beside(self, group: Group, rows: Rows, reductions: Sequence[Value]) -> int | None:
        """How many rows are reduced side by side, where they are neighbours in memory; None for the lanes of a vector.

        Whole cache lines are read then: the next part of one would be wanted after all the rest of the rows, and the
        first-level cache holds few places that are a power of two apart.
        """
        kept = [axis for axis, size in enumerate(rows.shape) if size != 1]
        if not kept or kept[-1] in rows.axes or operations(group.members) > _CHEAP_ROWS:
            return None
        read = {operand for member in group.members for operand in (member, *member.operands)}
        if any(value.op in _TURNING or value in self.blocks for value in read):
            return None
        if any(value.params["kind"] in EXTREMA for value in reductions):
            return None
        lanes, width, bits = self.target.lanes(32), rows.shape[kept[-1]], max(map(storage_bits, group.members))
        vectors = 1 << (_BESIDE * 32 // max(bits, 32) // len(reductions) or 1).bit_length() - 1
        while vectors > 1 and isinstance(width, int) and width < vectors * lanes:
            vectors //= 2
        return vectors * lanes

    def _levels(self, reductions: Sequence[Value]) -> list[list[Value]]:
        """Reductions in passes: each needs only those of earlier passes."""
        depth: dict[Value, int] = {}
        needed: dict[Value, int] = {}
        wanted = set(reductions)
        for value in self.schedule.order:
            below = max((needed.get(operand, 0) for operand in value.operands), default=0)
            if value in wanted:
                depth[value] = below
                needed[value] = below + 1
            else:
                needed[value] = below
        return [[value for value in reductions if depth[value] == level] for level in range(max(depth.values()) + 1)]

    # Images.

    def _image(self, group: Group, anchor: Value) -> list[Launch]:
        source = anchor.operands[0]
        if anchor.op == "reduce_window":
            self.whole.require_memory(source)
            pooling = choose_pooling(describe_pooling(anchor, source in self.blocks, storage_bits(anchor)), self.target)
            w = Writing(self.whole, group, None if pooling.schedule.blocked else pooling.schedule.lanes)
            return [w.launch(ImageKernel(w).pool(anchor, pooling), "pooling")]
        found = next((each for each in self.schedule.convolutions.values() if each.core is anchor), None)
        if found is None:
            raise UnsupportedError("convolve among other movements has no kernel.")
        self.whole.require_memory(found.image)
        choice = self.schedule.choose_convolution(found)
        chosen = choice.schedule
        stages = []
        if chosen.staged:
            w = Writing(self.whole, group)
            stages.append(w.launch(ImageKernel(w).transform(found, chosen), "winograd inputs"))
        if chosen.runtime_packing:
            w = Writing(self.whole, group, 1)
            stages.append(w.launch(ImageKernel(w).pack(found, chosen), "weights"))
        w = Writing(self.whole, group)
        items, title = ImageKernel(w).convolve(found, choice)
        launches = [*stages, w.launch(items, title)]
        buffers = dict.fromkeys(buffer for each in launches for buffer in each.buffers)
        missing = [each for each in buffers if isinstance(each, Relaid) and each not in self.whole.relaid]
        self.whole.relaid.update(missing)
        return [*(self._relay(group, each) for each in missing), *launches]

    def _relay(self, group: Group, relaid: Relaid) -> Launch:
        """Write an image once more."""
        value = relaid.source
        w = Writing(self.whole, group)
        block = relaid.block if relaid.block > 1 else 0
        memory = Memory(w.pointer(relaid), relaid.dtype, shape_of(value), block)

        def body(place: list[Index]) -> None:
            element = w.reader.element(value, tuple(place))
            name = w.reader.converted(dtype_of(value), relaid.dtype, element.name, element.uniform)
            w.reader.store(memory, tuple(place), Element(name, element.uniform))

        return w.launch(self._over(w, value, memory, shape_of(value), body), "layout")

    # Contractions.

    def _contract(self, group: Group, anchor: Value) -> Launch:
        w = Writing(self.whole, group, self.target.lanes(storage_bits(anchor)))
        found = self.schedule.gates.get(anchor)
        items = Contraction(w, anchor, found).write()
        return w.launch(items, "contract" if found is None else "gates")


def storage_bits(value: Value) -> int:
    """Bits of an element in a register."""
    register = load_store.register_type(dtype_of(value))
    return {"float": 32, "double": 64, "i1": 8}.get(register) or int(register[1:])
