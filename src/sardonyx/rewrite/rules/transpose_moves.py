"""Transposes moved to minimize the transposed bytes, by a minimum cut.

From each Transpose a region grows over the operators through which the Transpose can move. Every node of the region
either runs in the axis order before the Transpose (*permuted*) or stays; a Transpose is needed at each boundary
between the two. The cheapest choice is a minimum cut. A region changes only if its Transposes move fewer bytes, or
are fewer, and neither number grows: the pass terminates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from sardonyx.core import dim as algebra
from sardonyx.core.ir.types import TensorType
from sardonyx.errors import ShapeError
from sardonyx.ops.signatures import signature, type_text
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.minimum_cut import NEVER, Network
from sardonyx.rewrite.analysis.names import node_label
from sardonyx.rewrite.engine.engine import Engine
from sardonyx.rewrite.language import EXACT, REASSOCIATES, Patch, Refusal, Replacement, Result
from sardonyx.rewrite.notation import Transpose
from sardonyx.rewrite.rules.axis_permutations import Operand, Order, Reordered, compose_orders, invert_order
from sardonyx.rewrite.rules.layouts import BROADCAST_OPERATORS, adapt_to_order
from sardonyx.rewrite.site import Site
from sardonyx.rewrite.sweep import sweep

LARGEST = 4096
"""Largest number of nodes in a region."""

ASSUMED_SIZE = 32
"""Assumed size of an open dimension."""

NAME = "move_transposes"


@sweep(NAME, exactness=REASSOCIATES, on=("Transpose",))
def move_transposes(engine: Engine, graph: ir.Graph) -> Iterator[tuple[ir.Node, Result]]:
    """Move Transposes through other operators if fewer Transposes, or fewer transposed bytes, remain."""
    fixed = engine.memo.setdefault((NAME, "fixed"), set())
    for inner in engine.graphs(graph):
        seen: set[tuple[ir.Value, Order]] = set()
        for node in [node for node in inner if facts.is_op(node, "Transpose")]:
            for value, order in _starts(engine, node):
                if (value, order) not in seen and engine.alive(node):
                    region = _grow_region(engine, inner, value, order, fixed)
                    seen.update(region.orders.items())
                    yield from _permute_region(engine, node, region, fixed)


def _perm(engine: Engine, node: ir.Node) -> Order | None:
    """Return the permutation of a Transpose, or None if not known or the identity."""
    try:
        written = facts.attribute(node, "perm", 1)
    except facts.UnknownAttribute:
        return None
    rank = facts.rank(node.inputs[0])
    if rank is None:
        return None
    order = tuple(reversed(range(rank))) if written is None else tuple(written)
    return order if sorted(order) == list(range(rank)) != list(order) else None


def _starts(engine: Engine, node: ir.Node) -> Iterator[tuple[ir.Value, Order]]:
    """Yield the result and the operand of a Transpose, with the orders in which they need no Transpose."""
    order, source = _perm(engine, node), node.inputs[0]
    if order is not None and source is not None:
        yield node.outputs[0], order
        yield source, invert_order(order)


@dataclass
class _Region:
    """Nodes that can be permuted, and the axis orders of their operands and results.

    Attributes:
        graph: The graph of the nodes.
        said: Each node, on permuted operands.
        order: Axis order of a node's operands.
        orders: Axis order of a permuted value.
    """

    graph: ir.Graph
    said: dict[ir.Node, Reordered] = field(default_factory=dict)
    order: dict[ir.Node, Order] = field(default_factory=dict)
    orders: dict[ir.Value, Order] = field(default_factory=dict)

    def data(self, node: ir.Node) -> Iterator[ir.Value]:
        """Yield the nonconstant operands of a node whose axes are permuted."""
        for i in self.said[node].data:
            value = node.inputs[i]
            if value is not None and not facts.is_constant(value):
                yield value


def _grow_region(engine: Engine, graph: ir.Graph, value: ir.Value, order: Order, fixed: set[ir.Node]) -> _Region:
    region = _Region(graph, orders={value: order})
    stack = [value]
    while stack and len(region.said) < LARGEST:
        current = stack.pop()
        producer = current.producer()
        around = [use.node for use in current.uses()] + ([producer] if producer is not None else [])
        for node in dict.fromkeys(around):
            if node.graph is graph and node not in region.said and node not in fixed:
                stack += _add_to_region(engine, region, node, current)
    return region


def _add_to_region(engine: Engine, region: _Region, node: ir.Node, neighbor: ir.Value) -> list[ir.Value]:
    """Add a node next to the value ``beside`` to the region, if possible; return the values that are new."""
    order = region.orders[neighbor]
    said = _in_order(engine, node, order)
    is_result = neighbor.producer() is node
    if said is None or (is_result and said.order != order):
        return []
    reads = [v for i in said.data if (v := node.inputs[i]) is not None]
    variable = [v for v in reads if not facts.is_constant(v)]
    if not variable or (not is_result and neighbor not in variable):
        return []
    orders = {**dict.fromkeys(variable, order), **dict.fromkeys(node.outputs, said.order)}
    if any(region.orders.get(v, order_of_value) != order_of_value for v, order_of_value in orders.items()):
        return []
    if not all(_can_be_transposed(engine, v) for v in orders):
        return []
    if any(facts.is_constant(v) and not _may_be_permuted(engine, v) for v in reads):
        return []
    region.said[node], region.order[node] = said, order
    new = [v for v in orders if v not in region.orders]
    region.orders.update(orders)
    return [v for v in new if not _is_identity(region.orders[v])]


def _can_be_transposed(engine: Engine, value: ir.Value) -> bool:
    """Return True if Transpose accepts the element type, e.g. 8-bit floats from operator set 21 on."""
    kind, of_transpose = facts.dtype(value), signature("", "Transpose", engine.opset)
    if kind is None or of_transpose is None:
        return True
    return type_text(TensorType(kind, None)) in of_transpose.inputs[0][2]


def _in_order(engine: Engine, node: ir.Node, order: Order) -> Reordered | None:
    try:
        return adapt_to_order(Site(engine, node), order)
    except facts.UnknownAttribute:
        return None


def _is_identity(order: Order) -> bool:
    return list(order) == sorted(order)


def _may_be_permuted(engine: Engine, value: ir.Value) -> bool:
    """Return True if a constant may be stored in another order: it is small, or has one reader."""
    tensor = facts.constant_tensor(value)
    if tensor is None or tensor.dtype == ir.DataType.STRING:
        return False
    return tensor.nbytes <= min(engine.settings.growth, facts.SMALL) or len(value.uses()) == 1


# -- costs -------------------------------------------------------------------------------------


def _bytes(engine: Engine, value: ir.Value, order: Order) -> int:
    """Return the bytes of a Transpose of the value; 0 if only axes of size 1 move."""
    sizes = [_evaluate_size(size) for size in engine.sizes.dims(value) or (ASSUMED_SIZE,) * len(order)]
    moved = [stored for axis, stored in enumerate(order) if sizes[axis] != 1]
    if moved == sorted(moved):
        return 0
    return math.prod(sizes) * max(1, int(facts.element_bytes(facts.dtype(value))))


def _evaluate_size(size: algebra.Size) -> int:
    try:
        return max(1, algebra.evaluate(size, dict.fromkeys(algebra.symbols(size), ASSUMED_SIZE)))
    except (ShapeError, ZeroDivisionError):
        return ASSUMED_SIZE


class _Costs:
    """The cost of the Transposes in and around a region, and the cheapest choice of permuted nodes."""

    def __init__(self, engine: Engine, region: _Region) -> None:
        self._engine = engine
        self._region = region
        self._unit = 1 + 2 * len(region.orders)
        values = {v: self._describe(v) for v, order in region.orders.items() if not _is_identity(order)}
        self._values = list(values.values())
        for value, description in values.items():
            source = self._permuted_from(value)
            description.permuted_from = None if source is None else values[source]

    def choose_permuted(self) -> set[ir.Node]:
        """Return the nodes to permute, by a minimum cut."""
        network = Network()
        vertices = {node: network.add_vertex() for node in self._region.said}
        ends = {True: network.SOURCE, False: network.SINK}
        for value in self._values:
            plain, permuted = network.add_vertex(), network.add_vertex()
            network.connect(_end(value.plain, vertices, ends), plain, value.cost)
            network.connect(permuted, _end(value.permuted, vertices, ends), value.cost)
            for node in value.readers:
                network.connect(plain, vertices[node], NEVER)
                network.connect(vertices[node], permuted, NEVER)
            if value.needs_plain:
                network.connect(plain, network.SINK, NEVER)
            if value.needs_permuted or value.has_permuted_twin:
                network.connect(network.SOURCE, permuted, NEVER)
        chosen = network.cut()
        return {node for node, vertex in vertices.items() if vertex in chosen}

    def total(self, chosen: set[ir.Node]) -> tuple[int, int]:
        """Return bytes and number of the Transposes, if the ``chosen`` nodes are permuted."""
        needed: set[tuple[_Value, bool]] = set()
        for value in self._values:
            if value.needs_plain or not chosen.issuperset(value.readers):
                needed.add(value.stored_form(permuted=False))
            if value.needs_permuted or not chosen.isdisjoint(value.readers):
                needed.add(value.stored_form(permuted=True))
        return divmod(
            sum(value.cost for value, permuted in needed if value.lacks(chosen, permuted=permuted)), self._unit
        )

    def _permuted_from(self, value: ir.Value) -> ir.Value | None:
        """Return the value of which this one is the permuted form, by a Transpose inside of the region."""
        producer = value.producer()
        perm = None if producer is None else _transpose_order(self._engine, producer)
        if producer is None or perm is None or producer.graph is not self._region.graph:
            return None
        source, orders = producer.inputs[0], self._region.orders
        if source is None or orders.get(value) != perm or orders.get(source) != invert_order(perm):
            return None
        return source

    def _describe(self, value: ir.Value) -> _Value:
        order, producer = self._region.orders[value], value.producer()
        plain: ir.Node | bool = False
        permuted: ir.Node | bool = False
        if producer is not None and producer in self._region.said:
            plain = permuted = producer
        elif producer is not None and producer.graph is self._region.graph and facts.is_op(producer, "Transpose"):
            perm = _perm(self._engine, producer)
            plain, permuted = perm is not None, perm == order
        description = _Value(self._unit * _bytes(self._engine, value, order) + 1, plain, permuted)
        description.needs_plain = value.is_graph_output()
        for node, index in value.uses():
            if node in self._region.said and index in self._region.said[node].data:
                description.readers.append(node)
            elif node.graph is not self._region.graph or (perm := _transpose_order(self._engine, node)) is None:
                description.needs_plain = True
            elif perm == invert_order(order):
                is_twin = self._permuted_from(node.outputs[0]) is value
                description.needs_permuted = description.needs_permuted or not is_twin
                description.has_permuted_twin = description.has_permuted_twin or is_twin
        return description


@dataclass(eq=False)
class _Value:
    """A value of a region in its original (*plain*) and its other (*permuted*) axis order.

    Attributes:
        cost: Cost of a Transpose between the two orders.
        plain: True if a Transpose produces the plain value; or the node that produces the value, plain unless permuted.
        permuted: True if the permuted value exists anyway; or the node that produces the value, permuted if chosen.
        readers: Nodes of the region that read the value, in the order in which these nodes run.
        needs_plain: True if a reader outside of the region needs the plain value.
        needs_permuted: True if a Transpose outside of the region needs the permuted value.
        has_permuted_twin: True if the permuted value is another value of the region.
        permuted_from: The value of which this one is the permuted form; one Transpose serves both.
    """

    cost: int
    plain: ir.Node | bool
    permuted: ir.Node | bool
    readers: list[ir.Node] = field(default_factory=list)
    needs_plain: bool = False
    needs_permuted: bool = False
    has_permuted_twin: bool = False
    permuted_from: _Value | None = None

    def stored_form(self, *, permuted: bool) -> tuple[_Value, bool]:
        """Return the first of the twins that equals this value in this order, and its order."""
        first = self
        while first.permuted_from is not None:
            first, permuted = first.permuted_from, not permuted
        return first, permuted

    def lacks(self, chosen: set[ir.Node], *, permuted: bool) -> bool:
        """Return True if this order of the value needs a Transpose when ``chosen`` nodes are permuted."""
        source = self.permuted if permuted else self.plain
        return (source if isinstance(source, bool) else source in chosen) != permuted


def _end(source: ir.Node | bool, vertices: dict[ir.Node, int], ends: dict[bool, int]) -> int:
    return ends[source] if isinstance(source, bool) else vertices[source]


def _transpose_order(engine: Engine, node: ir.Node) -> Order | None:
    return _perm(engine, node) if facts.is_op(node, "Transpose") else None


# -- moving ------------------------------------------------------------------------------------


def _permute_region(
    engine: Engine, seed: ir.Node, region: _Region, fixed: set[ir.Node]
) -> Iterator[tuple[ir.Node, Result]]:
    """Permute the cheapest set of nodes, one by one, and merge consecutive Transposes."""
    if not region.said:
        return
    costs = _Costs(engine, region)
    chosen = costs.choose_permuted()
    before, after = costs.total(set()), costs.total(chosen)
    if after >= before or after[1] > before[1]:
        yield seed, Refusal("moving the Transpose would save no bytes, or add Transposes")
        return
    permuted_values: dict[ir.Value, ir.Value] = {}
    outputs: list[ir.Value] = []
    for node in _sort(region, chosen):
        said = region.said[node]
        # The operands are read again in each iteration: permuting one may replace another.
        while (value := next((v for v in region.data(node) if v not in permuted_values), None)) is not None:
            yield from _permute_value(engine, node, value, region.order[node], permuted_values)
            if value not in permuted_values:
                break
        if value is not None:
            fixed.add(node)
            continue
        expr = said.build(_operands(region, node, permuted_values))
        replace: dict[ir.Value, Replacement] = {
            value: expr.out(i) if _is_identity(said.order) else Transpose(expr.out(i), perm=list(said.order))
            for i, value in enumerate(node.outputs)
            if not facts.unused(value)
        }
        own = engine.origin.get(node, (node_label(node),))
        readers = [use for value in replace for use in list(value.uses())[:1]]
        yield node, Patch(replace, exactness=said.exactness)
        if engine.alive(node):
            fixed.add(node)
        else:
            results = [v for reader, index in readers if (v := reader.inputs[index]) is not None]
            _keep_origin(engine, results, own)
            outputs += results
    for value in [*outputs, *permuted_values]:
        yield from _merge_transposes(engine, value)


def _permute_value(
    engine: Engine, node: ir.Node, value: ir.Value, order: Order, permuted_values: dict[ir.Value, ir.Value]
) -> Iterator[tuple[ir.Node, Result]]:
    """Find the permuted form of a value, or insert a Transpose right after the value."""
    producer = value.producer()
    perm = None if producer is None or producer.graph is not node.graph else _transpose_order(engine, producer)
    before = None if producer is None or perm is None else producer.inputs[0]
    source, perm_from_source = value, invert_order(order)
    if perm is not None and before is not None:
        source, perm_from_source = before, compose_orders(perm, perm_from_source)
    if _is_identity(perm_from_source):
        permuted_values[value] = source
        return
    label = f"{value.name}_turned"
    attributes = [ir.AttrInt64s("perm", perm_from_source)]
    transpose = ir.Node("", "Transpose", [source], attributes, name=engine.node_names.fresh(label))
    output = transpose.outputs[0]
    output.name, output.type = engine.names.fresh(label), source.type
    output.shape = None if source.shape is None else ir.Shape([source.shape[axis] for axis in perm_from_source])
    duplicates = [
        use.node for use in value.uses() if source is value and _transpose_order(engine, use.node) == perm_from_source
    ]
    yield node, Patch(nodes=[transpose], after=value, exactness=EXACT)
    if transpose.graph is not None:
        permuted_values[value] = output
        for other in duplicates:
            if other.graph is transpose.graph:
                yield other, Patch({other.outputs[0]: output}, exactness=EXACT)


def _keep_origin(engine: Engine, results: list[ir.Value], own: tuple[str, ...]) -> None:
    """Record the original node alone as origin of the permuted node and its Transpose."""
    for value in results:
        last = value.producer()
        first = None if last is None or last.op_type != "Transpose" else last.inputs[0]
        for node in (last, None if first is None else first.producer()):
            if node is not None and node in engine.origin:
                engine.origin[node] = own


def _operands(region: _Region, node: ir.Node, permuted_values: dict[ir.Value, ir.Value]) -> list[Operand]:
    operands: list[Operand] = list(node.inputs)
    for i in region.said[node].data:
        value = node.inputs[i]
        if value is not None:
            operands[i] = (
                permuted_values[value] if value in permuted_values else _constant(node, value, region.order[node])
            )
    return operands


def _constant(node: ir.Node, value: ir.Value, order: Order) -> np.ndarray:
    """Return a constant operand in the other order, without leading axes of size 1 if it broadcasts."""
    array = facts.constant(value)
    assert array is not None
    permuted = array.reshape((1,) * (len(order) - array.ndim) + array.shape).transpose(invert_order(order))
    while node.op_type in BROADCAST_OPERATORS and permuted.ndim > 1 and permuted.shape[0] == 1:
        permuted = permuted[0]
    return np.ascontiguousarray(permuted)


def _merge_transposes(engine: Engine, value: ir.Value) -> Iterator[tuple[ir.Node, Result]]:
    """Merge Transposes of a Transpose into one, or none."""
    first = value.producer()
    inner = None if first is None or not engine.alive(first) else _transpose_order(engine, first)
    if first is None or inner is None or first.inputs[0] is None:
        return
    for use in list(value.uses()):
        outer = _transpose_order(engine, use.node) if use.node.graph is first.graph else None
        if outer is not None and engine.alive(use.node):
            whole, source = compose_orders(inner, outer), first.inputs[0]
            joined = source if _is_identity(whole) else Transpose(source, perm=list(whole))
            yield use.node, Patch({use.node.outputs[0]: joined}, exactness=EXACT)


def _sort(region: _Region, chosen: set[ir.Node]) -> list[ir.Node]:
    """Return the chosen nodes in topological order."""
    order: dict[ir.Node, None] = {}
    for start in region.said:
        stack = [start] if start in chosen else []
        while stack:
            node = stack[-1]
            producers = [v.producer() for v in region.data(node)]
            pending = [p for p in producers if p is not None and p in chosen and p not in order]
            stack += pending
            if not pending:
                order[stack.pop()] = None
    return list(order)
