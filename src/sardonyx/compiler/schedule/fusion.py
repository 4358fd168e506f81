"""Fusion: the groups of a Core function, each of which becomes one kernel.

Values are visited from the results back. A value joins the group of its consumers if all consumers are in one group
that can compute the value; otherwise the value is written to memory, as the root of a group of its own. Movements and
sources join their readers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from sardonyx.compiler.analysis.axis_collapsing import joined_axes
from sardonyx.compiler.analysis.bounded_output import has_kernel
from sardonyx.compiler.analysis.constant_values import is_closed
from sardonyx.compiler.analysis.control_flow import CONTROL, refusal
from sardonyx.compiler.analysis.element_types import MOVED_DTYPES, SMALL_DTYPES
from sardonyx.compiler.analysis.multi_gate_matmul import Gates, gates
from sardonyx.compiler.analysis.patterns import Attention, Convolution, attention, convolution
from sardonyx.compiler.analysis.primitive_traits import (
    ELEMENTWISE,
    ORDERED,
    REGIONS,
    WHOLE,
    Rows,
    changes_width,
    dtype_of,
    is_elementwise,
)
from sardonyx.compiler.analysis.slice_scatter import box
from sardonyx.compiler.analysis.strided_views import MOVEMENTS, shape_of
from sardonyx.compiler.analysis.tree_ensembles import tree_sum
from sardonyx.compiler.codegen import elementwise
from sardonyx.compiler.schedule.convolution_choice import choose
from sardonyx.compiler.schedule.groups import Group, operations
from sardonyx.compiler.target.description import Target
from sardonyx.compiler.tiling.choice import Choice
from sardonyx.compiler.tiling.convolution import ConvolutionSchedule
from sardonyx.compiler.tiling.gemm import GemmProblem, GemmSchedule, choose_gemm, gated_columns
from sardonyx.core.dim import Size, equal
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function, Value, dependencies
from sardonyx.core.ir.types import TensorType
from sardonyx.errors import SizeLimitError

_SOURCES = frozenset({"iota", "constant", "dims"})
_ANCHORS = frozenset({"contract", "convolve", "reduce_window"}) | ORDERED
_COMPUTING = frozenset({"reduce", "contract", "convolve", "reduce_window", "scatter"}) | ORDERED - {"fft"}
_MOVED_ONLY = SMALL_DTYPES | {t.COMPLEX64}

_CHEAP = 6
"""Most operations of a value that is recomputed for each element to which the value is broadcast."""


class Schedule:
    """A function's groups.

    Args:
        function: What to schedule.
        kept: Values that have to be in memory, with the reason.
        refused: Values that there is no kernel for, with the reason.
        target: What the kernels are for.
        threads: Threads that share the work.

    Attributes:
        groups: In the order in which they can run.
        host: Values that have no kernel: the interpreter computes them.
        convolutions: Convolutions by the image that they give.
        attentions: Attentions by their second product.
        gates: Products of gates by the product.
        gate_choices: Their schedules.
        computed: All values in the order in which groups, and those outside of them, can be computed.
    """

    def __init__(
        self,
        function: Function,
        kept: Mapping[Value, str],
        refused: Mapping[Value, str],
        target: Target,
        threads: int = 1,
    ) -> None:
        self.function = function
        self.target = target
        self.threads = threads
        self.order = function.values
        self.users: dict[Value, list[Value]] = {value: [] for value in self.order}
        for value in self.order:
            for operand in dict.fromkeys(value.operands):
                self.users[operand].append(value)
        self.convolutions: dict[Value, Convolution] = {}
        self.attentions: dict[Value, Attention] = {}
        self.gates: dict[Value, Gates] = {}
        self.gate_choices: dict[Value, Choice[GemmSchedule]] = {}
        self._convolution_choices: dict[Value, Choice[ConvolutionSchedule]] = {}
        self._absorbed: set[Value] = set()
        self._kept = {**dict.fromkeys(function.results, "a result"), **kept}
        self.host: dict[Value, str] = dict(refused)
        self._by_value: dict[Value, Group] = {}
        self._consumers: dict[Value, dict[Group | str, None]] = {}
        self._rows_of: dict[Value, Rows] = {}
        self._weights: dict[Value, int] = {}
        self._gates_of: dict[Value, Gates] = {}
        self._recognize()
        for value in reversed(self.order):
            self._assign(value)
        self.groups, self.computed = self._in_order()

    def choose_convolution(self, found: Convolution) -> Choice[ConvolutionSchedule]:
        """Return the schedule of a convolution, chosen at the first call.

        Raises:
            UnsupportedError: No kernel computes the convolution.
        """
        choice = self._convolution_choices.get(found.core)
        if choice is None:
            choice = self._convolution_choices[found.core] = choose(found, self.target, self.threads)
        return choice

    def group(self, value: Value) -> Group | None:
        """The group that computes a value."""
        return self._by_value.get(value)

    def _in_order(self) -> tuple[list[Group], tuple[Value, ...]]:
        """Return groups, and values, in topological order; all results of a group precede their readers."""
        groups: list[Group] = []
        values: dict[Value, None] = {}
        position = {value: i for i, value in enumerate(self.order)}
        begun: set[Group | Value] = set()
        for first in self.order:
            alone = self._by_value.get(first)
            if alone is not None and first not in alone.roots:
                continue
            waiting: list[tuple[Value, bool]] = [(first, False)]
            while waiting:
                value, is_ready = waiting.pop()
                group = self._by_value.get(value)
                members = [value] if group is None else sorted(group.members | {value}, key=position.__getitem__)
                if is_ready:
                    values.update(dict.fromkeys(members))
                    groups += [] if group is None else [group]
                elif (group or value) not in begun:
                    begun.add(group or value)
                    waiting.append((value, True))
                    inside = set(members)
                    needed = [
                        each
                        for member in members
                        for each in dependencies(member, self.function.level)
                        if each not in inside
                    ]
                    waiting += [(each, False) for each in sorted(needed, key=position.__getitem__, reverse=True)]
        return groups, tuple(values)

    # What there is.

    def _recognize(self) -> None:
        for value in self.order:
            if (
                value.op == "convolve"
                and value not in self.host
                and (found := convolution(value, self.users)) is not None
            ) and not any(part in self._kept for part in found.absorbed):
                self.convolutions[found.result] = found
                self._absorbed.update(found.absorbed)
            elif value.op == "contract" and value not in self.host:
                whole = attention(value, self.users)
                if whole is not None and not any(part in self._kept or part in self.host for part in whole.interior):
                    self.attentions[value] = whole
        for number, value in enumerate(self.order):
            if value.op == "contract" and value not in self.host and value not in self.attentions:
                found_gates = gates(value, self.order[number:], self.users, self._kept.__contains__)
                choice = None if found_gates is None else self._choose_gates(found_gates)
                if found_gates is not None and choice is not None and self._is_free(found_gates):
                    self.gates[value] = found_gates
                    self.gate_choices[value] = choice
                    self._gates_of |= dict.fromkeys(found_gates.members, found_gates)
        for value in self.order:
            self._trace_rows(value)
            if value not in self.host and (reason := self._unsupported(value)) is not None:
                self.host[value] = reason

    def _choose_gates(self, whole: Gates) -> Choice[GemmSchedule] | None:
        """Choose the schedule of a product with all gates of a unit; None if a separate product is faster."""
        if any(member in self.host for member in whole.members):
            return None
        (along,) = whole.product.params["right"]
        weights, result = whole.product.operands[1], dtype_of(whole.product)
        rows, depth = math.prod(shape_of(whole.product)[:-1]), shape_of(weights)[along]
        columns = gated_columns(self.target, result, whole.count, whole.units)
        problem = GemmProblem(rows, columns, depth, result, "packed", dtype_of(weights), gates=whole.count)
        choice = choose_gemm(problem, self.target)
        return choice if choice.schedule.gates == whole.count else None

    def _is_free(self, whole: Gates) -> bool:
        """Return True if no other product has these gates: of a sum of two products, one is in memory."""
        return whole.members.isdisjoint(self._gates_of)

    def _unsupported(self, value: Value) -> str | None:
        """Return the reason why a value has no kernel; None if one exists."""
        if value.op in ("input", "constant") or value in self._absorbed or value in self.convolutions:
            return None
        if value.op == "call":
            return None if tree_sum(value) is not None else "call of a function that has no kernel"
        if value.op in CONTROL:
            return refusal(value)
        if has_kernel(value):
            return None
        if value.op == "get" and self.is_native(value.operands[0]):
            return None
        if not isinstance(value.type, TensorType):
            return f"{value.op} gives {type(value.type).__name__}"
        for part in (value, *value.operands):
            if not isinstance(part.type, TensorType) or part.type.dtype not in MOVED_DTYPES:
                return f"{value.op} of {part.type}"
            if part.type.dtype in _MOVED_ONLY and value.op in _COMPUTING:
                return f"{value.op} of {part.type}"
        if value.op == "fft" and isinstance(points := shape_of(value)[-1], int) and points & (points - 1):
            return f"numpy's transform of {points} points is faster than one by a convolution"
        if changes_width(value):
            small = SMALL_DTYPES & {dtype_of(value), dtype_of(value.operands[0])}
            return f"bitcast of {value.operands[0].type} to {value.type}" if small else None
        if value.op in ELEMENTWISE:
            dtypes = [dtype_of(operand) for operand in value.operands]
            return None if elementwise.supported(value.op, dtypes, value.params) else f"{value.op} of {value.type}"
        if value.op in MOVEMENTS | _SOURCES | REGIONS | _ANCHORS or value.op in ("reduce", "gather"):
            return None
        return f"{value.op} has no kernel"

    def is_native(self, value: Value) -> bool:
        """Return True if native code computes a value with several results, which are then in memory."""
        return value.op in WHOLE and value not in self.host

    def _trace_rows(self, value: Value) -> None:
        """Record the reduction from which a value of one element per row is computed."""
        if value.op == "reduce":
            self._rows_of[value] = Rows(shape_of(value.operands[0]), value.params["axes"])
        elif is_elementwise(value) or value.op in ("reshape", "stop_gradient"):
            candidates = [self._rows_of[operand] for operand in value.operands if operand in self._rows_of]
            if (
                candidates
                and all(rows == candidates[0] for rows in candidates)
                and _same_count(shape_of(value), candidates[0].kept)
            ):
                self._rows_of[value] = candidates[0]

    # Who computes what.

    def _transparent(self, value: Value) -> bool:
        moves = value.op in MOVEMENTS or value.op in _SOURCES or _is_entry(value) or self._is_index(value)
        return moves and value not in self.convolutions

    def _is_index(self, value: Value) -> bool:
        """Return True for an integer, such as an index, that is cheaper to compute again than to read."""
        return (
            value.op in ELEMENTWISE
            and dtype_of(value) in (t.INT64, t.INT32, t.BOOL)
            and math.prod(shape_of(value)) == 1
            and all(dtype_of(operand) in (t.INT64, t.INT32, t.BOOL) for operand in value.operands)
            and self._weight(value) <= _CHEAP
        )

    def consumers(self, value: Value) -> dict[Group | str, None]:
        """Return the groups that read a value, and the reasons to store the value in memory."""
        groups = self._consumers.get(value)
        if groups is None:
            groups = {}
            if value in self._kept:
                groups[self._kept[value]] = None
            for user in self.users[value]:
                groups.update(dict.fromkeys(self._reading(user, value)))
            self._consumers[value] = groups
        return groups

    def _reading(self, user: Value, value: Value) -> Iterable[Group | str]:
        if user in self._absorbed:
            chain = self.users[user]
            return self._reading(chain[0], user) if user.op != "convolve" else ["read by a convolution"]
        if user in self.host:
            return ["read by the interpreter"]
        if user.op in WHOLE:
            return ["read by control flow"]
        if user.op in ("contract", "convolve") and value is user.operands[1] and self._is_prepared(user):
            return []
        if user.op == "scatter" and value is user.operands[1] and box(user) is not None:
            return []
        if user in self.attentions and value in self.attentions[user].interior:
            return [self._by_value[user]]
        if user.op in _ANCHORS - ORDERED:
            return [f"read by {user.op}"]
        if user.op == "gather" and user.operands[0] is value:
            return ["elements of it are gathered"]
        if self._transparent(user) and user not in self._by_value:
            return self.consumers(user)
        # What nobody reads is not computed.
        return [self._by_value[user]] if user in self._by_value else []

    def _is_prepared(self, user: Value) -> bool:
        """Return True if the second operand of a contraction is packed when the program is compiled."""
        return is_closed(user.operands[1]) and not (user.op == "contract" and user.params["batch"])

    def _is_written_over(self, value: Value, group: Group) -> bool:
        """Return True if the only use of a value is as the operand into which a scatter writes."""
        (user, *others) = self.users[value]
        return (
            not others and user in group.members and user.op == "scatter"
            and user.operands[0] is value and value not in user.operands[1:]
        )  # fmt: skip

    def _is_part(self, value: Value, group: Group) -> bool:
        """Return True if a group that is written part by part reads each element of a value once."""
        users = self.users[value]
        if len(users) != 1 or users[0].operands.count(value) != 1:
            return False
        if self._transparent(users[0]):
            return _same_count(shape_of(value), shape_of(users[0])) and self._is_part(users[0], group)
        regions = [member for member in group.members if member.op in REGIONS]
        return any(_same_count(shape_of(value), shape_of(part)) for region in regions for part in region.operands)

    def _assign(self, value: Value) -> None:
        if value.op in ("input", "constant", "get") or value in self.host or value in self._absorbed:
            return
        if value.op in WHOLE:
            self._begin_group(value, "it has several results")
            return
        if value in self._by_value:
            return
        if value in self._gates_of:
            self._begin_gate_group(self._gates_of[value])
            return
        if self._transparent(value):
            if value in self._kept and not (value.op == "dims" and len(value.params["sizes"]) > 1):
                self._begin_group(value, self._kept[value])
            return
        consumers = list(self.consumers(value))
        if not consumers:
            return
        only = consumers[0]
        if len(consumers) == 1 and isinstance(only, Group):
            reason = self._refusal(value, only)
            if reason is None:
                self._join(value, only)
                return
        else:
            reason = next((each for each in consumers if isinstance(each, str)), f"{len(consumers)} groups read it")
        self._begin_group(value, reason)

    def _begin_group(self, value: Value, reason: str) -> None:
        group = Group(value, reason)
        self._join(value, group)

    def _begin_gate_group(self, whole: Gates) -> None:
        *others, root = whole.results
        members = {member for member in whole.members if member not in whole.parts}
        group = Group(root, "all gates of a unit are there", members, anchor=whole.product, others=tuple(others))
        self._by_value |= dict.fromkeys(whole.members, group)

    def _join(self, value: Value, group: Group) -> None:
        group.members.add(value)
        self._by_value[value] = group
        if (value in self._rows_of and group.rows is None and group.anchor is None and value.op == "reduce") or (
            value in self._rows_of and value is not group.root and group.rows is None
        ):
            group.rows = self._rows_of[value]
        if value in self.convolutions:
            group.anchor = self.convolutions[value].core
        elif value.op in _ANCHORS:
            group.anchor = value
        if value in self.attentions:
            interior = self.attentions[value].interior
            group.members |= interior
            self._by_value |= dict.fromkeys(interior, group)

    def _refusal(self, value: Value, group: Group) -> str | None:
        """Return the reason why a group cannot compute a value that the group reads; None if it can."""
        if group.root.op in REGIONS and (value.op in _ANCHORS or value.op == "reduce" or value in self.convolutions):
            return f"{group.root.op} is written part by part"
        if value.op == "scatter" and self._is_written_over(value, group):
            return None
        if value.op in REGIONS:
            return f"{value.op} is written part by part"
        domain = shape_of(group.root)
        if value.op in _ANCHORS or value in self.convolutions:
            if group.anchor is not None:
                return "a kernel is built around one contraction"
            if group.rows is not None:
                return "it is read row by row"
            if not _same_shape(shape_of(value), domain):
                return "it is read in another shape"
            return None
        rows = self._rows_of.get(value)
        if rows is not None and (value.op == "reduce" or not _same_count(shape_of(value), domain)):
            if group.anchor is not None:
                return "reductions are no part of a contraction"
            if group.rows is not None:
                return None if group.rows == rows else "it is reduced over other axes"
            if group.root.op in REGIONS or not (_same_shape(domain, rows.shape) or _same_count(domain, rows.kept)):
                return "it is reduced over other sizes"
            return None
        if self._is_divided(value):
            return "its place would be divided for each element"
        full = group.rows.shape if group.rows is not None else domain
        if self._weight(value) <= _CHEAP or (group.root.op in REGIONS and self._is_part(value, group)):
            return None
        if _fewer(shape_of(value), full):
            return "it would be computed again for each element that reads it"
        return None

    def _is_divided(self, value: Value) -> bool:
        """Return True if recomputing a value at its reader would divide the index in every lane.

        The reader's last axis is several axes of the value, and something is broadcast along only some of these.
        """
        shapes = [shape_of(user) for user in self.users[value] if user.op == "reshape"]
        joined = [axes for shape in shapes if len(axes := joined_axes(shape, shape_of(value))) > 1]
        parts = [value] if joined else []
        for part in parts:
            if part.op == "broadcast" and any(
                shape_of(part.operands[0])[axis] != 1 for axes in joined for axis in axes
            ):
                return True
            if is_elementwise(part):
                parts += [operand for operand in part.operands if operand not in parts]
        return False

    def _weight(self, value: Value) -> int:
        """Return the operations for an element of a value, from memory on."""
        weight = self._weights.get(value)
        if weight is None:
            weight = 0
            if value.op in ELEMENTWISE:
                weight = operations((value,))
            elif value.op == "gather":
                weight = 2
            if value.op not in _ANCHORS and value.op not in ("reduce", "get"):
                weight += sum(self._weight(operand) for operand in value.operands)
            self._weights[value] = weight = min(weight, 1000)
        return weight


def _is_entry(value: Value) -> bool:
    """Return True for one entry of a tensor, at a computed index."""
    return value.op == "gather" and math.prod(shape_of(value.operands[1])[:-1]) == 1 and not value.params["batch"]


def _same_shape(a: tuple[Size, ...], b: tuple[Size, ...]) -> bool:
    return len(a) == len(b) and all(x == y or bool(equal(x, y)) for x, y in zip(a, b, strict=True))


def _same_count(a: tuple[Size, ...], b: tuple[Size, ...]) -> bool:
    if a == b:
        return True
    x, y = _count(a), _count(b)
    return x is not None and y is not None and (x == y or bool(equal(x, y)))


def _fewer(a: tuple[Size, ...], b: tuple[Size, ...]) -> bool:
    """Return True if a shape has fewer elements than another; symbols count as larger than numbers."""
    if a == b:
        return False
    x, y = _count(a), _count(b)
    if isinstance(x, int) and isinstance(y, int):
        return x < y
    return x is None or y is None or not (x == y or equal(x, y))


def _count(shape: tuple[Size, ...]) -> Size | None:
    """Return the number of elements of a shape; None if the expression is too long."""
    try:
        return math.prod(shape)
    except SizeLimitError:
        return None
