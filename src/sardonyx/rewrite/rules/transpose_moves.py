"""Transposes moved through operators that work in any order of axes, to where the fewest bytes are transposed.

From each Transpose a region grows over what it could be moved through. Every node in it may be turned, so that it
works in the order of axes before the Transpose, or be left; a Transpose stands wherever the two meet. The cheapest
choice is a minimum cut. A region is changed only where its Transposes take fewer bytes, or are fewer, and neither
grows: so moving them ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from sardonyx.core import dim as algebra
from sardonyx.errors import ShapeError
from sardonyx.rewrite import facts
from sardonyx.rewrite.engine import Engine
from sardonyx.rewrite.language import EXACT, REASSOCIATES, Patch, Refusal, Replacement, Result
from sardonyx.rewrite.minimum_cut import NEVER, Network
from sardonyx.rewrite.names import node_label
from sardonyx.rewrite.notation import Transpose
from sardonyx.rewrite.rules.axis_permutations import Operand, Order, Said, composed, inverse
from sardonyx.rewrite.rules.layouts import MANY, in_order
from sardonyx.rewrite.site import Site
from sardonyx.rewrite.sweep import sweep

LARGEST = 4096
"""Nodes beyond which a region grows no more."""

TAKEN_AS = 32
"""What an open size is counted as."""

NAME = "move_transposes"


@sweep(NAME, exactness=REASSOCIATES, on=("Transpose",))
def move_transposes(engine: Engine, graph: ir.Graph) -> Iterator[tuple[ir.Node, Result]]:
    """Transposes are moved through other operators where fewer of them, or of fewer bytes, are left."""
    fixed = engine.memo.setdefault((NAME, "fixed"), set())
    for inner in engine.graphs(graph):
        seen: set[tuple[ir.Value, Order]] = set()
        for node in [node for node in inner if facts.is_op(node, "Transpose")]:
            for value, order in _starts(engine, node):
                if (value, order) not in seen and engine.alive(node):
                    region = _grown(engine, inner, value, order, fixed)
                    seen.update(region.orders.items())
                    yield from _moved(engine, node, region, fixed)


def _perm(engine: Engine, node: ir.Node) -> Order | None:
    """The permutation of a Transpose, or None where it is no whole one."""
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
    """What a Transpose makes, and what it reads, with the orders in which they need no Transpose."""
    order, source = _perm(engine, node), node.inputs[0]
    if order is not None and source is not None:
        yield node.outputs[0], order
        yield source, inverse(order)


@dataclass
class _Region:
    """Nodes that can be turned, said so, and the orders of the values that they read and make.

    Attributes:
        graph: The graph that holds them.
        said: Each node, said of operands in its order.
        order: The order of the data that a node reads.
        orders: The order in which a value would be held.
    """

    graph: ir.Graph
    said: dict[ir.Node, Said] = field(default_factory=dict)
    order: dict[ir.Node, Order] = field(default_factory=dict)
    orders: dict[ir.Value, Order] = field(default_factory=dict)

    def data(self, node: ir.Node) -> Iterator[ir.Value]:
        """The operands of a node whose order counts and that are no constants."""
        for i in self.said[node].data:
            value = node.inputs[i]
            if value is not None and not facts.is_constant(value):
                yield value


def _grown(engine: Engine, graph: ir.Graph, value: ir.Value, order: Order, fixed: set[ir.Node]) -> _Region:
    region = _Region(graph, orders={value: order})
    waiting = [value]
    while waiting and len(region.said) < LARGEST:
        current = waiting.pop()
        producer = current.producer()
        around = [use.node for use in current.uses()] + ([producer] if producer is not None else [])
        for node in dict.fromkeys(around):
            if node.graph is graph and node not in region.said and node not in fixed:
                waiting += _taken_in(engine, region, node, current)
    return region


def _taken_in(engine: Engine, region: _Region, node: ir.Node, beside: ir.Value) -> list[ir.Value]:
    """Take a node into the region, if it can be turned as the value ``beside`` it is; the values that are new there."""
    order = region.orders[beside]
    said = _said(engine, node, order)
    made = beside.producer() is node
    if said is None or (made and said.order != order):
        return []
    reads = [v for i in said.data if (v := node.inputs[i]) is not None]
    variable = [v for v in reads if not facts.is_constant(v)]
    if not variable or (not made and beside not in variable):
        return []
    wanted = {**dict.fromkeys(variable, order), **dict.fromkeys(node.outputs, said.order)}
    if any(region.orders.get(v, want) != want for v, want in wanted.items()):
        return []
    if any(facts.is_constant(v) and not _may_be_turned(engine, v) for v in reads):
        return []
    region.said[node], region.order[node] = said, order
    new = [v for v in wanted if v not in region.orders]
    region.orders.update(wanted)
    return [v for v in new if not _in_place(region.orders[v])]


def _said(engine: Engine, node: ir.Node, order: Order) -> Said | None:
    try:
        return in_order(Site(engine, node), order)
    except facts.UnknownAttribute:
        return None


def _in_place(order: Order) -> bool:
    return list(order) == sorted(order)


def _may_be_turned(engine: Engine, value: ir.Value) -> bool:
    """Whether a constant may be held in another order: it is small, or nothing else reads it."""
    tensor = facts.constant_tensor(value)
    if tensor is None or tensor.dtype == ir.DataType.STRING:
        return False
    return tensor.nbytes <= min(engine.settings.growth, facts.SMALL) or len(value.uses()) == 1


# -- costs -------------------------------------------------------------------------------------


def _bytes(engine: Engine, value: ir.Value, order: Order) -> int:
    """The bytes of a Transpose from or to the value in this order; none where only axes of size 1 change place."""
    sizes = [_number(size) for size in engine.sizes.dims(value) or (TAKEN_AS,) * len(order)]
    moved = [place for axis, place in enumerate(order) if sizes[axis] != 1]
    kind = facts.dtype(value)
    return 0 if moved == sorted(moved) else math.prod(sizes) * max(1, 4 if kind is None else kind.bitwidth // 8)


def _number(size: algebra.Size) -> int:
    try:
        return max(1, algebra.evaluate(size, dict.fromkeys(algebra.symbols(size), TAKEN_AS)))
    except (ShapeError, ZeroDivisionError):
        return TAKEN_AS


class _Costs:
    """What the Transposes in and around a region take, and the choice of nodes to turn for which that is least."""

    def __init__(self, engine: Engine, region: _Region) -> None:
        self._engine = engine
        self._region = region
        self._unit = 1 + 2 * len(region.orders)
        seen = {value: self._seen(value) for value, order in region.orders.items() if not _in_place(order)}
        self._values = list(seen.values())
        for value, found in seen.items():
            source = self._other_order_of(value)
            found.turned_of = None if source is None else seen[source]

    def turned(self) -> set[ir.Node]:
        """The nodes to turn."""
        network = Network()
        places = {node: network.place() for node in self._region.said}
        ends = {True: network.SOURCE, False: network.SINK}
        for each in self._values:
            plain, turned = network.place(), network.place()
            network.connect(_end(each.plain, places, ends), plain, each.cost)
            network.connect(turned, _end(each.turned, places, ends), each.cost)
            for node in each.readers:
                network.connect(plain, places[node], NEVER)
                network.connect(places[node], turned, NEVER)
            if each.asked_plain:
                network.connect(plain, network.SINK, NEVER)
            if each.asked_turned or each.held_turned:
                network.connect(network.SOURCE, turned, NEVER)
        chosen = network.cut()
        return {node for node, place in places.items() if place in chosen}

    def total(self, chosen: set[ir.Node]) -> tuple[int, int]:
        """Bytes and number of the Transposes, when these nodes are turned."""
        needed: set[tuple[_Value, bool]] = set()
        for each in self._values:
            if each.asked_plain or not chosen.issuperset(each.readers):
                needed.add(each.held_as(turned=False))
            if each.asked_turned or not chosen.isdisjoint(each.readers):
                needed.add(each.held_as(turned=True))
        return divmod(sum(each.cost for each, turned in needed if each.lacks(chosen, turned=turned)), self._unit)

    def _other_order_of(self, value: ir.Value) -> ir.Value | None:
        """The value of the region of which a Transpose makes this one, where each is the other in its other order."""
        producer = value.producer()
        perm = None if producer is None else _perm_of(self._engine, producer)
        if producer is None or perm is None or producer.graph is not self._region.graph:
            return None
        source, orders = producer.inputs[0], self._region.orders
        if source is None or orders.get(value) != perm or orders.get(source) != inverse(perm):
            return None
        return source

    def _seen(self, value: ir.Value) -> _Value:
        order, producer = self._region.orders[value], value.producer()
        plain: ir.Node | bool = False
        turned: ir.Node | bool = False
        if producer is not None and producer in self._region.said:
            plain = turned = producer
        elif producer is not None and producer.graph is self._region.graph and facts.is_op(producer, "Transpose"):
            perm = _perm(self._engine, producer)
            plain, turned = perm is not None, perm == order
        found = _Value(self._unit * _bytes(self._engine, value, order) + 1, plain, turned)
        found.asked_plain = value.is_graph_output()
        for node, place in value.uses():
            if node in self._region.said and place in self._region.said[node].data:
                found.readers.append(node)
            elif node.graph is not self._region.graph or (perm := _perm_of(self._engine, node)) is None:
                found.asked_plain = True
            elif perm == inverse(order):
                between = self._other_order_of(node.outputs[0]) is value
                found.asked_turned, found.held_turned = found.asked_turned or not between, found.held_turned or between
        return found


@dataclass(eq=False)
class _Value:
    """A value that could be held in another order.

    Attributes:
        cost: Of a Transpose from one of its orders to the other.
        plain: Whether a Transpose makes it as it is; or the node that does not make it so when turned.
        turned: Whether it is there in the other order anyway; or the node that makes it so when turned.
        readers: Nodes of the region that read it, in the order that they work in.
        asked_plain: Whether anything else reads it as it is.
        asked_turned: Whether it is turned anyway, for readers outside the region.
        held_turned: Whether the region has it in the other order too, as another value.
        turned_of: The value of which this one is the other order; a Transpose between the two is one of that value.
    """

    cost: int
    plain: ir.Node | bool
    turned: ir.Node | bool
    readers: list[ir.Node] = field(default_factory=list)
    asked_plain: bool = False
    asked_turned: bool = False
    held_turned: bool = False
    turned_of: _Value | None = None

    def held_as(self, *, turned: bool) -> tuple[_Value, bool]:
        """The value that is to be held for this one to be there as it is, or turned; and whether that one is turned."""
        found = self
        while found.turned_of is not None:
            found, turned = found.turned_of, not turned
        return found, turned

    def lacks(self, chosen: set[ir.Node], *, turned: bool) -> bool:
        """Whether it takes a Transpose to have it as it is, or turned, when these nodes are turned."""
        made = self.turned if turned else self.plain
        return (made if isinstance(made, bool) else made in chosen) != turned


def _end(made: ir.Node | bool, places: dict[ir.Node, int], ends: dict[bool, int]) -> int:
    return ends[made] if isinstance(made, bool) else places[made]


def _perm_of(engine: Engine, node: ir.Node) -> Order | None:
    return _perm(engine, node) if facts.is_op(node, "Transpose") else None


# -- moving ------------------------------------------------------------------------------------


def _moved(engine: Engine, seed: ir.Node, region: _Region, fixed: set[ir.Node]) -> Iterator[tuple[ir.Node, Result]]:
    """Turn the nodes that are cheapest to have turned, one by one, and join the Transposes that meet."""
    if not region.said:
        return
    costs = _Costs(engine, region)
    chosen = costs.turned()
    before, after = costs.total(set()), costs.total(chosen)
    if after >= before or after[1] > before[1]:
        yield seed, Refusal("moving it would leave as many bytes to transpose, or more Transposes")
        return
    held: dict[ir.Value, ir.Value] = {}
    outputs: list[ir.Value] = []
    for node in _in_sequence(region, chosen):
        said = region.said[node]
        # Asked each time: to hold one operand in its other order may put another in the place of the next.
        while (value := next((v for v in region.data(node) if v not in held), None)) is not None:
            yield from _hold(engine, node, value, region.order[node], held)
            if value not in held:
                break
        if value is not None:
            fixed.add(node)
            continue
        expr = said.build(_operands(region, node, held))
        replace: dict[ir.Value, Replacement] = {
            value: expr.out(i) if _in_place(said.order) else Transpose(expr.out(i), perm=list(said.order))
            for i, value in enumerate(node.outputs)
            if not facts.unused(value)
        }
        own = engine.origin.get(node, (node_label(node),))
        readers = [use for value in replace for use in list(value.uses())[:1]]
        yield node, Patch(replace, exactness=said.exactness)
        if engine.alive(node):
            fixed.add(node)
        else:
            made = [v for reader, place in readers if (v := reader.inputs[place]) is not None]
            _keep_origin(engine, made, own)
            outputs += made
    for value in [*outputs, *held]:
        yield from _joined(engine, value)


def _hold(
    engine: Engine, node: ir.Node, value: ir.Value, order: Order, held: dict[ir.Value, ir.Value]
) -> Iterator[tuple[ir.Node, Result]]:
    """Find what is the value in its other order, or make it right after the value."""
    producer = value.producer()
    perm = None if producer is None or producer.graph is not node.graph else _perm_of(engine, producer)
    before = None if producer is None or perm is None else producer.inputs[0]
    source, whole = value, inverse(order)
    if perm is not None and before is not None:
        source, whole = before, composed(perm, whole)
    if _in_place(whole):
        held[value] = source
        return
    made = ir.Node(
        "", "Transpose", [source], [ir.AttrInt64s("perm", whole)], name=engine.node_names.fresh(f"{value.name}_turned")
    )
    output = made.outputs[0]
    output.name, output.type = engine.names.fresh(f"{value.name}_turned"), source.type
    output.shape = None if source.shape is None else ir.Shape([source.shape[axis] for axis in whole])
    again = [use.node for use in value.uses() if source is value and _perm_of(engine, use.node) == whole]
    yield node, Patch(nodes=[made], after=value, exactness=EXACT)
    if made.graph is not None:
        held[value] = output
        for other in again:
            if other.graph is made.graph:
                yield other, Patch({other.outputs[0]: output}, exactness=EXACT)


def _keep_origin(engine: Engine, made: list[ir.Value], own: tuple[str, ...]) -> None:
    """A turned node, and the Transpose behind it, come of the node alone, not of all that were turned before it."""
    for value in made:
        last = value.producer()
        first = None if last is None or last.op_type != "Transpose" else last.inputs[0]
        for node in (last, None if first is None else first.producer()):
            if node is not None and node in engine.origin:
                engine.origin[node] = own


def _operands(region: _Region, node: ir.Node, held: dict[ir.Value, ir.Value]) -> list[Operand]:
    operands: list[Operand] = list(node.inputs)
    for i in region.said[node].data:
        value = node.inputs[i]
        if value is not None:
            operands[i] = held[value] if value in held else _constant(node, value, region.order[node])
    return operands


def _constant(node: ir.Node, value: ir.Value, order: Order) -> np.ndarray:
    """A constant operand in the other order; axes of size 1 in front are left out where it broadcasts."""
    array = facts.constant(value)
    assert array is not None
    turned = array.reshape((1,) * (len(order) - array.ndim) + array.shape).transpose(inverse(order))
    while node.op_type in MANY and turned.ndim > 1 and turned.shape[0] == 1:
        turned = turned[0]
    return np.ascontiguousarray(turned)


def _joined(engine: Engine, value: ir.Value) -> Iterator[tuple[ir.Node, Result]]:
    """Transposes of a Transpose become one, or none."""
    first = value.producer()
    inner = None if first is None or not engine.alive(first) else _perm_of(engine, first)
    if first is None or inner is None or first.inputs[0] is None:
        return
    for use in list(value.uses()):
        outer = _perm_of(engine, use.node) if use.node.graph is first.graph else None
        if outer is not None and engine.alive(use.node):
            whole, source = composed(inner, outer), first.inputs[0]
            joined = source if _in_place(whole) else Transpose(source, perm=list(whole))
            yield use.node, Patch({use.node.outputs[0]: joined}, exactness=EXACT)


def _in_sequence(region: _Region, chosen: set[ir.Node]) -> list[ir.Node]:
    """The chosen nodes, each after those whose outputs it reads."""
    found: dict[ir.Node, None] = {}
    for start in region.said:
        stack = [start] if start in chosen else []
        while stack:
            node = stack[-1]
            before = [v.producer() for v in region.data(node)]
            waiting = [each for each in before if each is not None and each in chosen and each not in found]
            stack += waiting
            if not waiting:
                found[stack.pop()] = None
    return list(found)
