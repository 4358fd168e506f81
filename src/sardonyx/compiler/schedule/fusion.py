"""Fusion: the groups of a Core function, each of which becomes one kernel.

Values are visited from the results back. A value joins the group of its consumers if all consumers are in one group
that can compute the value; otherwise the value is written to memory, as the root of a group of its own. Movements and
sources join their readers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set

from sardonyx.compiler.analysis.bounded_output import has_kernel
from sardonyx.compiler.analysis.code_tables import CodeTable, find_code_tables
from sardonyx.compiler.analysis.constant_values import is_closed
from sardonyx.compiler.analysis.control_flow import CONTROL, refusal
from sardonyx.compiler.analysis.multi_gate_matmul import Gates, find_gates
from sardonyx.compiler.analysis.patterns import (
    Attention,
    Convolution,
    match_attention,
    match_convolution,
    skip_broadcasts,
)
from sardonyx.compiler.analysis.primitive_traits import ORDERED, REGIONS, WHOLE, Rows, dtype_of, is_elementwise
from sardonyx.compiler.analysis.slice_scatter import written_box
from sardonyx.compiler.analysis.strided_views import MOVEMENTS, shape_of
from sardonyx.compiler.analysis.tree_ensembles import tree_sum
from sardonyx.compiler.analysis.weight_gradients import WeightGradient, match_weight_gradient
from sardonyx.compiler.schedule.convolution_choice import choose
from sardonyx.compiler.schedule.group_order import sort_groups
from sardonyx.compiler.schedule.groups import Group, operations
from sardonyx.compiler.schedule.kernel_support import ANCHORS, SOURCES, refuse_primitive
from sardonyx.compiler.schedule.recomputation import Recomputation, has_fewer, has_same_count, has_same_shape
from sardonyx.compiler.target.description import Target
from sardonyx.compiler.tiling import costs
from sardonyx.compiler.tiling.choice import Choice
from sardonyx.compiler.tiling.convolution import ConvolutionSchedule, typical_symbols
from sardonyx.compiler.tiling.gemm import choose_gemm
from sardonyx.compiler.tiling.gemm_schedule import GemmProblem, GemmSchedule, gated_columns
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function, Value
from sardonyx.errors import UnsupportedError


class Grouping:
    """The groups of a function.

    Args:
        function: The function.
        in_memory: Values that must be in memory, with the reason.
        refused: Values without a kernel, with the reason.
        target: The processor.
        threads: Threads that share the work.

    Attributes:
        groups: The groups in topological order.
        host: Values without a kernel, which the interpreter computes, with the reason.
        convolutions: Convolutions by the result image.
        weight_gradients: Gradients of convolution weights by the result.
        attentions: Attentions by the second product.
        gates: Products fused with their gates, by product.
        gate_choices: The schedules of products that have gates, by product; a schedule of one gate is one without
            fusion.
        tables: Values that are looked up in a table of codes.
        computed: All values in topological order of the groups.
        recomputation: The costs of recomputing values.
    """

    def __init__(
        self,
        function: Function,
        in_memory: Mapping[Value, str],
        refused: Mapping[Value, str],
        target: Target,
        threads: int = 1,
    ) -> None:
        self.function = function
        self.target = target
        self.threads = threads
        self.order = function.values
        self.users: dict[Value, list[Value]] = {value: [] for value in self.order}
        self._position = {value: number for number, value in enumerate(self.order)}
        for value in self.order:
            for operand in dict.fromkeys(value.operands):
                self.users[operand].append(value)
        self.convolutions: dict[Value, Convolution] = {}
        self.weight_gradients: dict[Value, WeightGradient] = {}
        self.attentions: dict[Value, Attention] = {}
        self.gates: dict[Value, Gates] = {}
        self.gate_choices: dict[Value, Choice[GemmSchedule]] = {}
        self._convolution_choices: dict[Value, Choice[ConvolutionSchedule]] = {}
        inputs = [value.type for value in function.inputs if isinstance(value.type, t.TensorType)]
        self._symbols = typical_symbols(size for tensor in inputs for size in (tensor.shape or ())[1:])
        self._absorbed: set[Value] = set()
        self.recomputation = Recomputation(self.users)
        self._stored = {**dict.fromkeys(function.results, "a result"), **in_memory}
        self._stored = _ends_of_chains(self.order, self._stored) | self._stored
        self.host: dict[Value, str] = dict(refused)
        self._by_value: dict[Value, Group] = {}
        self._consumers: dict[Value, dict[Group | str, None]] = {}
        self._rows_of: dict[Value, Rows] = {}
        self._anchors: dict[Value, Value | None] = {}
        self._claims: dict[Group, Value] = {}
        self._recomputed: set[Value] = set()
        self._repeated_from: set[Value] = set()
        self._current = len(self.order)
        self._gates_of: dict[Value, Gates] = {}
        self.tables: dict[Value, CodeTable] = {}
        self._match_tables()
        self._match_patterns()
        for value in reversed(self.order):
            self._current = self._position[value]
            self._assign(value)
        for group in {*self._by_value.values()}:
            if not _reduces(group):
                group.rows = None  # Values of rows joined, their reductions did not.
        self.groups, self.computed = sort_groups(self.order, self._by_value, function.level)

    def choose_convolution(self, match: Convolution) -> Choice[ConvolutionSchedule]:
        """Return the schedule of a convolution, chosen at the first call.

        Raises:
            UnsupportedError: No kernel computes the convolution.
        """
        choice = self._convolution_choices.get(match.core)
        if choice is None:
            choice = self._convolution_choices[match.core] = choose(match, self.target, self.threads, self._symbols)
        return choice

    def group(self, value: Value) -> Group | None:
        """Return the group that computes a value; None for values without a kernel of their own."""
        return self._by_value.get(value)

    # Recognition of patterns with a kernel template.

    def _match_tables(self) -> None:
        """Let functions of codes be tables in memory, if a lookup takes less time than the functions."""
        tables = [
            table for table in find_code_tables(self.order, self.function.results)
            if operations((*table.interior, table.result)) >= costs.TABLE_OPERATIONS
            and table.source.op not in MOVEMENTS and table.result not in self.host
        ]  # fmt: skip
        for table in tables:
            self.tables[table.result] = table
            self._stored.setdefault(table.result, "a table of codes")
            if table.source.op != "input":
                self._stored.setdefault(table.source, "a table of codes reads it")
        members = {value for table in tables for value in (*table.interior, table.result)}
        # Lookups read no other values: what other kernels read is computed for these alone.
        self._recomputed.update(
            value for value in members if value not in self._stored and members.issuperset(self.users[value])
        )

    def _match_patterns(self) -> None:
        for value in self.order:
            if value.op == "convolve" and value not in self.host:
                self._match_convolution(value)
            elif value.op == "contract" and value not in self.host:
                self._match_attention(value)
        self._absorb_copies(Convolution.absorb_pad)
        self._absorb_copies(Convolution.absorb_flip)
        self._absorb_shifts()
        for number, value in enumerate(self.order):
            if value.op == "contract" and value not in self.host and value not in self.attentions:
                self._match_gates(value, number)
                if value not in self._gates_of and _reads_columns(value):
                    self._stored.setdefault(value.operands[0], "a product reads the columns of a matrix")
        for value in self.order:
            self._trace_rows(value)
            if value not in self.host and (reason := self._refuse_kernel(value)) is not None:
                self.host[value] = reason

    def _match_convolution(self, value: Value) -> None:
        gradient = match_weight_gradient(value, self.users)
        if gradient is not None and value not in self._stored:
            self.weight_gradients[gradient.result] = gradient
            self._absorbed.add(value)
            return
        match = match_convolution(value, self.users)
        if match is not None and not any(part in self._stored for part in match.absorbed):
            self.convolutions[match.result] = match
            self._absorbed.update(match.absorbed)

    def _absorb_copies(self, absorb: Callable[[Convolution], Convolution | None]) -> None:
        """Let convolutions on the matrix unit, which copy the image, compute the image if nothing else reads it."""
        readers: dict[Value, list[Convolution]] = {}
        for match in self.convolutions.values():
            readers.setdefault(match.image, []).append(match)
        for image, matches in readers.items():
            wholes = [absorb(match) for match in matches if self._uses(match, "matrix")]
            if len(wholes) < len(matches) or len(self.users[image]) != len(matches) or image in self._stored:
                continue
            for match, whole in zip(matches, wholes, strict=True):
                inner = () if whole is None else {*whole.absorbed} - {*match.absorbed, image}
                if whole is not None and not any(v in self._stored or len(self.users[v]) != 1 for v in inner):
                    self.convolutions[whole.result] = whole
                    self._absorbed.update(whole.absorbed)

    def _absorb_shifts(self) -> None:
        """Let depthwise convolutions subtract the zero point of their image, if nothing else reads the difference."""
        for match in [*self.convolutions.values()]:
            whole = match.absorb_shift() if self._uses(match, "depthwise") else None
            if whole is not None:
                new = whole.absorbed[:2]
                if not any(value in self._stored or len(self.users[value]) != 1 for value in new):
                    self.convolutions[match.result] = whole
                    self._absorbed.update(new)

    def _uses(self, match: Convolution, algorithm: str) -> bool:
        """Return True if a convolution has a kernel, of an algorithm."""
        try:
            return self.choose_convolution(match).schedule.algorithm == algorithm
        except UnsupportedError:
            return False

    def _match_attention(self, value: Value) -> None:
        match = match_attention(value, self.users)
        if match is not None and not any(part in self._stored or part in self.host for part in match.interior):
            self.attentions[value] = match

    def _match_gates(self, value: Value, number: int) -> None:
        match = find_gates(value, self.order[number:], self.users, self._stored.__contains__)
        if match is None:
            return
        choice = self._choose_gates(match)
        if choice is None or not self._is_free(match):
            return
        self.gate_choices[value] = choice
        if choice.schedule.gates == match.count:
            self.gates[value] = match
            self._gates_of |= dict.fromkeys(match.members, match)

    def _choose_gates(self, whole: Gates) -> Choice[GemmSchedule] | None:
        """Choose the schedule of a product with all gates of a unit; None if a gate has no kernel.

        A schedule of one gate means that a separate product is faster.
        """
        if any(member in self.host for member in whole.members):
            return None
        (along,) = whole.product.params["right"]
        weights, result = whole.product.operands[1], dtype_of(whole.product)
        rows, depth = math.prod(shape_of(whole.product)[:-1]), shape_of(weights)[along]
        columns = gated_columns(self.target, result, whole.count, whole.units)
        problem = GemmProblem(rows, columns, depth, result, "packed", dtype_of(weights), gates=whole.count)
        return choose_gemm(problem, self.target)

    def _is_free(self, whole: Gates) -> bool:
        """Return True if no other product has these gates: of a sum of two products, one is in memory."""
        return whole.members.isdisjoint(self._gates_of)

    def _refuse_kernel(self, value: Value) -> str | None:
        """Return the reason why a value has no kernel; None if a kernel exists."""
        if value.op in ("input", "constant") or value in self._absorbed or self._is_built_around(value):
            return None
        if value.op == "call":
            return None if tree_sum(value) is not None else "call of a function without a kernel"
        if value.op in CONTROL:
            return refusal(value)
        if has_kernel(value) or (value.op == "get" and self.is_native(value.operands[0])):
            return None
        return refuse_primitive(value)

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
                and has_same_count(shape_of(value), candidates[0].result_shape)
            ):
                self._rows_of[value] = candidates[0]

    # Assignment of values to groups.

    def _transparent(self, value: Value) -> bool:
        moves = value.op in MOVEMENTS or value.op in SOURCES or _is_entry(value) or self.recomputation.is_index(value)
        return (moves or value in self._recomputed) and not self._is_built_around(value)

    def _is_built_around(self, value: Value) -> bool:
        """Return True for the result of a convolution or of a gradient of its weights."""
        return value in self.convolutions or value in self.weight_gradients

    def consumers(self, value: Value) -> dict[Group | str, None]:
        """Return the groups that read a value, and the reasons to store the value in memory."""
        groups = self._consumers.get(value)
        if groups is None:
            assert self._position[value] >= self._current, f"internal: not all readers of {value} have a group yet."
            groups = {}
            if value in self._stored:
                groups[self._stored[value]] = None
            for user in self.users[value]:
                groups.update(dict.fromkeys(self._reading(user, value)))
            self._consumers[value] = groups
        return groups

    def _reading(self, user: Value, value: Value) -> Iterable[Group | str]:
        if user in self.host:
            return ["read by the interpreter"]
        if user.op in ("contract", "convolve") and value is user.operands[1] and self._is_prepared(user):
            return []
        if user in self._absorbed:
            chain = self.users[user]
            return self._reading(chain[0], user) if user.op != "convolve" else ["read by a convolution"]
        if user.op in WHOLE:
            return ["read by control flow"]
        if user.op == "scatter" and value is user.operands[1] and written_box(user) is not None:
            return []
        if user in self.attentions and value in self.attentions[user].interior:
            return [self._by_value[user]]
        if user.op in ANCHORS - ORDERED:
            return [f"read by {user.op}"]
        if user.op == "gather" and user.operands[0] is value:
            return ["a gather reads elements"]
        if self._transparent(user) and user not in self._by_value:
            return self.consumers(user)
        # A reader without a group is not computed: no result depends on the reader.
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
            return has_same_count(shape_of(value), shape_of(users[0])) and self._is_part(users[0], group)
        regions = [member for member in group.members if member.op in REGIONS]
        return any(has_same_count(shape_of(value), shape_of(part)) for region in regions for part in region.operands)

    def _assign(self, value: Value) -> None:
        if value.op in ("input", "constant", "get") or value in self.host or value in self._absorbed:
            return
        if value.op in WHOLE:
            self._begin_group(value, "several results")
            return
        if value in self._by_value:
            return
        if value in self._gates_of:
            self._begin_gate_group(self._gates_of[value])
            return
        if self._transparent(value):
            if value in self._stored and not (value.op == "dims" and len(value.params["sizes"]) > 1):
                self._begin_group(value, self._stored[value])
            return
        consumers = list(self.consumers(value))
        if not consumers:
            return
        only = consumers[0]
        if len(consumers) > 1 and _is_dequantized(value) and all(isinstance(reader, Group) for reader in consumers):
            # The codes take a quarter of the memory, and each reader computes the floats in a few operations.
            self._recomputed.add(value)
            return
        if len(consumers) > 1 and self._is_repeated(value, consumers):
            self._recomputed.add(value)
            return
        if len(consumers) == 1 and isinstance(only, Group):
            reason = self._refusal(value, only)
            if reason is None:
                self._join(value, only)
                return
        elif (shared := self._map_with(value, consumers) or self._rows_with(value, consumers)) is not None:
            self._join(value, shared)
            shared.others = (value, *shared.others)
            return
        else:
            reason = next(
                (consumer for consumer in consumers if isinstance(consumer, str)), f"{len(consumers)} groups read it"
            )
        self._begin_group(value, reason)

    def _is_repeated(self, value: Value, consumers: Sequence[Group | str]) -> bool:
        """Return True if each reader computes a value in a few operations from values that stay in memory as long.

        Such are the argument of an activation function, and normalized rows, between the forward and the backward pass.
        """
        if not is_elementwise(value) or value in self._rows_of or value in self._stored or not shape_of(value):
            return False
        if is_closed(value):
            return False  # The operations behind its operands, which no memory holds, would be repeated too.
        if not all(isinstance(reader, Group) for reader in consumers) or self.recomputation.divides_indices(value):
            return False
        if any(user.op == "reduce" and user.params["kind"] != "add" for user in self.users[value]):
            return False  # A kernel that writes the value may keep its extremes.
        last = max(self._ready(reader, value) for reader in consumers if isinstance(reader, Group))
        sources = self.recomputation.repeated_from(value)
        if sources is None or value in self._repeated_from or any(source.op == "input" for source, _ in sources):
            return False  # Repeated from repeated values, a chain would repeat all of its operations.
        if not all(self._is_read_until(last, source, value, between) for source, between in sources):
            return False
        self._repeated_from.update(source for source, _ in sources)
        return True

    def _ready(self, group: Group, without: Value) -> int:
        """Return the position from which a group can be computed: that of the last value which it reads."""
        outside = {operand for member in group.members for operand in member.operands} - group.members
        read = outside - (self._recomputed - {without})
        return max((self._position[operand] for operand in read), default=self._position[group.root])

    def _is_read_until(self, last: int, source: Value, value: Value, between: Set[Value]) -> bool:
        """Return True if a value is in memory up to a position for readers after ``value``, without those between."""
        for user in self.users[source]:
            # Readers of earlier users are not known yet.
            if user not in between and self._position[user] > self._position[value]:
                for reader in self._reading(user, source):
                    if self._position[reader.root if isinstance(reader, Group) else user] >= last:
                        return True
        return False

    def _map_with(self, value: Value, consumers: Sequence[Group | str]) -> Group | None:
        """Return the map of the same sizes that computes a value on the way and can write it too; None without one.

        The new state of an optimizer is such a value: one kernel reads and writes parameter, gradient and state. Other
        readers must follow the map.
        """
        groups = [consumer for consumer in consumers if isinstance(consumer, Group)]
        if not groups or not is_elementwise(value) or value in self._rows_of or not shape_of(value):
            return None
        if any(skip_broadcasts(operand) in self._rows_of for operand in value.operands):
            return None  # A reduction may join the map, which then works row by row.
        if "a result" not in consumers and self._anchor_of(value) is not None:
            return None  # A contraction may compute the value in its epilogue.
        if any(consumer != "a result" for consumer in consumers if not isinstance(consumer, Group)):
            return None
        group = min(groups, key=lambda one: self._position[one.root])
        if group.anchor is not None or group.rows is not None or not is_elementwise(group.root):
            return None
        if group.root in self.tables:
            return None
        if shape_of(value) != shape_of(group.root):
            return None
        if "a result" in consumers:
            if group.reason != "a result":
                return None
        elif self.convolutions and len(shape_of(value)) > 2:
            return None  # The value may be an image in blocked layout, which the kernel's other values are not.
        last = max(self._position[member] for member in group.members)
        others = [root for one in groups if one is not group for root in one.roots]
        return group if all(self._position[root] > last for root in others) else None

    def _rows_with(self, value: Value, consumers: Sequence[Group | str]) -> Group | None:
        """Return the group that reduces the same rows to its root and can write a value of each row too, or None.

        The scale and zero point of a dynamic quantization are such values: one kernel reads the tensor once. Other
        readers must follow the kernel.
        """
        rows = self._rows_of.get(value)
        if rows is None or not has_same_count(shape_of(value), rows.result_shape):
            return None
        groups = [consumer for consumer in consumers if isinstance(consumer, Group)]
        if len(groups) < len(consumers):
            return None
        group = min(groups, key=lambda one: self._position[one.root])
        if self._rows_of.get(group.root) != rows or group.rows not in (None, rows) or group.anchor is not None:
            return None
        if group.root.op in REGIONS or group.root in self.tables or shape_of(group.root) != shape_of(value):
            return None
        if self.convolutions and len(shape_of(value)) > 2:
            return None  # As for maps: one of the values may be an image in blocked layout.
        last = max(self._position[member] for member in group.members)
        others = [root for one in groups if one is not group for root in one.roots]
        return group if all(self._position[root] > last for root in others) else None

    def _anchor_of(self, value: Value) -> Value | None:
        """Return the contraction or reduction of which a value is an elementwise function, or None."""
        if value not in self._anchors:
            self._anchors[value] = None
            for operand in value.operands:
                if operand.op in ANCHORS or operand.op == "reduce" or self._is_built_around(operand):
                    source: Value | None = operand
                elif (is_elementwise(operand) or operand.op == "stop_gradient") and not self._is_written(operand):
                    source = self._anchor_of(operand)
                else:
                    continue
                if source is not None and has_same_count(shape_of(source), shape_of(value)):
                    self._anchors[value] = source
                    break
        return self._anchors[value]

    def _is_written(self, value: Value) -> bool:
        """Return True if a value is already known to be in memory: what a reduction and others read, too."""
        users = self.users[value]
        is_reduced = len(users) > 1 and any(user.op == "reduce" for user in users)
        return is_reduced or value in self._stored or value in self.host or is_narrowing(value)

    def _begin_group(self, value: Value, reason: str) -> None:
        group = Group(value, reason)
        self._join(value, group)

    def _begin_gate_group(self, whole: Gates) -> None:
        *others, root = whole.results
        members = {member for member in whole.members if member not in whole.parts}
        group = Group(root, "all gates of a unit are in one tile", members, anchor=whole.product, others=tuple(others))
        self._by_value |= dict.fromkeys(whole.members, group)

    def _join(self, value: Value, group: Group) -> None:
        group.members.add(value)
        self._by_value[value] = group
        if group.rows is None and group.anchor is None and (value.op == "reduce" or value is not group.root):
            group.rows = self._rows_of.get(value)
        if value in self.convolutions:
            group.anchor = self.convolutions[value].core
        elif value in self.weight_gradients:
            group.anchor = self.weight_gradients[value].core
        elif value.op in ANCHORS:
            group.anchor = value
        if group.anchor is not None:
            group.rows = None  # Values of rows joined before; their reductions are kernels of their own.
        if value in self.attentions:
            interior = self.attentions[value].interior
            group.members |= interior
            self._by_value |= dict.fromkeys(interior, group)

    def _refusal(self, value: Value, group: Group) -> str | None:
        """Return the reason why a group cannot compute a value read by the group; None if the group can."""
        if group.root.op in REGIONS and (value.op in ANCHORS or value.op == "reduce" or self._is_built_around(value)):
            return f"{group.root.op} is written part by part"
        if value.op == "scatter" and self._is_written_over(value, group):
            return None
        if value.op in REGIONS:
            return f"{value.op} is written part by part"
        domain = shape_of(group.root)
        if is_narrowing(value) and (anchor := self._anchor_of(value)) is not None:
            # The contraction could not join the group, and would be stored in 32 bits.
            reason = self._refusal(anchor, group)
            if self._claims.setdefault(group, anchor) is not anchor:
                reason = "a kernel is built around one contraction"
            if reason is not None:
                return f"8-bit results are stored: {reason}"
        if value.op in ANCHORS or self._is_built_around(value):
            if group.anchor is not None:
                return "a kernel is built around one contraction"
            if group.others:
                return "several results are computed in the order of memory"
            if group.rows is not None and _reduces(group):
                return "the reader works row by row"
            if not has_same_shape(shape_of(value), domain):
                return "the reader has another shape"
            return None
        rows = self._rows_of.get(value)
        if rows is not None and group.others and group.rows is None:
            return "several results are computed in the order of memory"
        if rows is not None and (value.op == "reduce" or not has_same_count(shape_of(value), domain)):
            if group.anchor is not None:
                return "the kernel of a contraction has no reductions"
            if group.rows is not None:
                return None if group.rows == rows else "the reader reduces other axes"
            if group.root.op in REGIONS or not (
                has_same_shape(domain, rows.shape) or has_same_count(domain, rows.result_shape)
            ):
                return "the reader has other sizes than the reduction"
            return None
        if self.recomputation.divides_indices(value):
            return "the index would be divided for each element"
        full = group.rows.shape if group.rows is not None else domain
        if (attention := self.attentions.get(group.root)) is not None:
            scores = shape_of(attention.scores)
            full = scores if shape_of(value)[-1:] in (scores[-1:], (1,)) else full
        if self.recomputation.is_cheap(value) or (group.root.op in REGIONS and self._is_part(value, group)):
            return None
        if has_fewer(shape_of(value), full):
            return "recomputing for each element of the reader costs more than storing"
        return None


_COPIED_ROWS = 8
"""Fewest rows and columns of a product for which a transposed operand is copied."""


LONGEST_CHAIN = 100
"""Most functions and movements from memory to a value of a kernel: elements are emitted by recursion."""


def _ends_of_chains(order: Sequence[Value], stored: Collection[Value]) -> dict[Value, str]:
    """Return the values that are written to memory so that no chain is too long to emit, with the reason."""
    length: dict[Value, int] = {}
    ends: dict[Value, str] = {}
    for value in order:
        if value in stored or not (is_elementwise(value) or value.op in MOVEMENTS):
            continue
        length[value] = 1 + max((length.get(operand, 0) for operand in value.operands), default=0)
        if length[value] >= LONGEST_CHAIN:
            del length[value]
            ends[value] = f"a kernel computes at most {LONGEST_CHAIN} functions in a chain"
    return ends


def _reads_columns(product: Value) -> bool:
    """Return True if the first operand of a product is a permuted matrix whose sums run along columns in memory.

    Elements along a column are on pages of their own; a copy costs less than to read them for every column of the
    result.
    """
    x = product.operands[0]
    if x.op != "permute" or dtype_of(x) not in (t.FLOAT, t.DOUBLE, t.BFLOAT16):
        return False
    left, batch = product.params["left"], [a for a, _ in product.params["batch"]]
    free = [axis for axis in range(len(shape_of(x))) if axis not in left and axis not in batch]
    last = len(shape_of(x)) - 1
    if x.params["axes"][last] == last or x.params["axes"][free[-1]] != last:
        return False
    columns = [size for axis, size in enumerate(shape_of(product)) if axis >= len(batch) + len(free)]
    rows = [shape_of(x)[axis] for axis in free]
    return not any(isinstance(size, int) and size < _COPIED_ROWS for size in (math.prod(columns), math.prod(rows)))


def _reduces(group: Group) -> bool:
    return any(member.op == "reduce" for member in group.members)


def is_narrowing(value: Value) -> bool:
    """Return True for floats that are converted to 8-bit integers."""
    return value.op == "convert" and dtype_of(value) in (t.UINT8, t.INT8) and dtype_of(value.operands[0]) == t.FLOAT


def _is_dequantized(value: Value) -> bool:
    """Return True for 8-bit integers as numbers, less a constant and times a constant."""
    while value.op in ("mul", "sub"):
        # A number repeated to open sizes is not closed, but is known.
        known = [is_closed(skip_broadcasts(operand)) for operand in value.operands]
        if not any(known):
            return False
        value = value.operands[0] if known[1] else value.operands[1]
    return value.op == "convert" and dtype_of(value.operands[0]) in (t.UINT8, t.INT8)


def _is_entry(value: Value) -> bool:
    """Return True for one entry of a tensor, at a computed index."""
    return value.op == "gather" and math.prod(shape_of(value.operands[1])[:-1]) == 1 and not value.params["batch"]
