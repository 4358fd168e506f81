"""Loops that run once or never, redundant state, and loop-invariant computations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.facts import captured_values
from sardonyx.rewrite.language import EXACT, Patch, Refusal, Result, rule
from sardonyx.rewrite.rules.bodies import Numbers, copy_body, immovable_reason, move_node, release_outputs, splice
from sardonyx.rewrite.rules.control_flow_if import decided_condition
from sardonyx.rewrite.rules.loop_carried import (
    CarriedLoop,
    is_certain_to_run,
    read_loop,
    remove_from_loop,
    replace_parameter,
    trace_identity,
)
from sardonyx.rewrite.site import Site

MOST_UNROLLED = 1024
"""Nodes that unrolling one loop may make."""


def trip_count(s: Site, loop: CarriedLoop) -> int | None:
    """Return the number of runs of a Loop's body if constants decide it, else None."""
    most = None if s.input(0) is None else s.sizes.constant(s.input(0))
    if s.input(0) is not None and most is None:
        return None
    begins = True if s.input(1) is None else decided_condition(s.sizes, s.input(1))
    if begins is None:
        return 0 if most is not None and most[0] <= 0 else None
    if not begins or (most is not None and most[0] <= 0):
        return 0
    goes_on = trace_identity(loop.body.outputs[0], loop.body)
    again = begins if goes_on is loop.body.inputs[1] else decided_condition(s.sizes, goes_on)
    if again is False:
        return 1
    if most is None or (again is None and most[0] > 1):
        return None
    return most[0]


@rule("eliminate_short_loop", on="Loop", exactness=EXACT)
def never_runs(s: Site) -> Result:
    """Replace a Loop that never runs its body by its initial values and empty slices."""
    loop = read_loop(s)
    if loop is None or trip_count(s, loop) != 0:
        return None
    empty: list[np.ndarray | None] = []
    for value, output in zip(loop.stacked, s.node.outputs[loop.states :], strict=True):
        shape, kind = facts.static_shape(value), facts.dtype(value)
        if facts.unused(output):
            empty.append(None)
        elif shape is None or kind is None or kind == ir.DataType.STRING:
            return Refusal("the shape of the empty slices is not known")
        else:
            empty.append(np.zeros((0, *shape), kind.numpy()))

    def end() -> Patch:
        nodes: list[ir.Node] = []
        replaced = {output: loop.initial(i) for i, output in enumerate(s.node.outputs[: loop.states])}
        for output, array in zip(s.node.outputs[loop.states :], empty, strict=True):
            if array is not None:
                replaced[output] = s.workspace.new_constant(array, s.graph, f"{output.name}_empty", nodes)
        return Patch({old: new for old, new in replaced.items() if new is not None}, nodes=nodes)

    return Patch(build=end)


@rule("eliminate_short_loop", on="Loop", exactness=EXACT)
def runs_once(s: Site) -> Result:
    """Replace a Loop that runs its body once by the body."""
    loop = read_loop(s)
    if loop is None or trip_count(s, loop) != 1:
        return None
    if (reason := immovable_reason(s.workspace, loop.body)) is not None:
        return Refusal(reason)
    if sum(not facts.unused(output) for output in s.node.outputs[loop.states :]) > 1:
        return Refusal("each output of slices would need an Unsqueeze of its own")
    return Patch(build=lambda: _unrolled(s, loop, 1))


@rule("unroll_loop", on="Loop", exactness=EXACT, default=False)
def runs_known_number_of_times(s: Site) -> Result:
    """Unroll a Loop that runs a known number of times."""
    loop = read_loop(s)
    count = None if loop is None else trip_count(s, loop)
    if loop is None or count is None or count < 1:
        return None
    if (reason := immovable_reason(s.workspace, loop.body)) is not None:
        return Refusal(reason)
    if count * sum(1 for _ in facts.nodes_of(loop.body)) > MOST_UNROLLED:
        return Refusal(f"it runs {count} times, which would be too many nodes")
    return Patch(build=lambda: _unrolled(s, loop, count))


def _unrolled(s: Site, loop: CarriedLoop, count: int) -> Patch:
    """Return the body ``count`` times; the last copy is the body itself."""
    nodes: list[ir.Node] = []
    true = s.workspace.new_constant(_shaped(True, loop.body.inputs[1]), s.graph, f"{s.output.name}_true", nodes)
    states = [loop.initial(i) for i in range(loop.states)]
    slices: list[list[ir.Value]] = [[] for _ in loop.stacked]
    for run in range(count):
        number = np.array(run, np.int64)
        iteration = s.workspace.new_constant(
            _shaped(number, loop.body.inputs[0]), s.graph, f"{s.output.name}_run", nodes
        )
        arguments = dict(zip(loop.body.inputs, (iteration, true, *states), strict=True))
        if run < count - 1:
            new_nodes, outputs = copy_body(s.workspace, loop.body, arguments, s.graph)  # type: ignore[arg-type]
        else:
            outputs = [arguments.get(value) or value for value in release_outputs(loop.body)]
            new_nodes = splice(s.workspace, loop.body, arguments, s.graph)
        nodes.extend(new_nodes)
        states = list(outputs[1 : 1 + loop.states])
        for column, value in zip(slices, outputs[1 + loop.states :], strict=True):
            column.append(value)
    replaced = dict(zip(s.node.outputs, states, strict=False))
    for output, column in zip(s.node.outputs[loop.states :], slices, strict=True):
        if not facts.unused(output):
            replaced[output] = _stacked(s, column, nodes)
    return Patch({old: new for old, new in replaced.items() if new is not None}, nodes=nodes)


def _shaped(value: np.ndarray | bool, like: ir.Value) -> np.ndarray:
    return np.asarray(value).reshape((1,) * (facts.rank(like) or 0))


def _stacked(s: Site, slices: Sequence[ir.Value], nodes: list[ir.Node]) -> ir.Value:
    """Return the slices joined along a new first axis, and append the nodes for it."""
    stretched: list[ir.Value] = []
    axes: list[ir.Value] = []
    if s.opset >= 13:
        axes = [s.workspace.new_constant(np.array([0], np.int64), s.graph, f"{s.output.name}_axis", nodes)]
    for value in slices:
        attributes = [] if axes else [ir.AttrInt64s("axes", [0])]
        stretched.append(_added(s, "Unsqueeze", [value, *axes], attributes, nodes))
    if len(stretched) == 1:
        return stretched[0]
    return _added(s, "Concat", stretched, [ir.AttrInt64("axis", 0)], nodes)


def _added(s: Site, op: str, inputs: list[ir.Value], attributes: list[ir.Attr], nodes: list[ir.Node]) -> ir.Value:
    node = ir.Node("", op, inputs, attributes, name=s.workspace.node_names.fresh(f"{s.output.name}/{op}"))
    node.outputs[0].name = s.workspace.names.fresh(f"{s.output.name}/{op}")
    node.outputs[0].type = inputs[0].type
    nodes.append(node)
    return node.outputs[0]


@rule("eliminate_unused_loop_state", on=("Loop", "Scan"), exactness=EXACT)
def state_without_use(s: Site) -> Result:
    """Drop state, slices and outputs of a loop that nothing needs."""
    loop = read_loop(s)
    if loop is None:
        return None
    needed = [*loop.body.outputs[: loop.conditions]]
    needed += [
        v for v, output in zip(loop.stacked, s.node.outputs[loop.states :], strict=True) if not facts.unused(output)
    ]
    live = {i for i in range(loop.states) if not facts.unused(s.node.outputs[i])}
    needed += [loop.update(i) for i in sorted(live)]
    reached = _reached(loop.body, needed)
    while grown := {i for i in range(loop.states) if i not in live and loop.parameter(i) in reached}:
        live |= grown
        reached |= _reached(loop.body, [loop.update(i) for i in sorted(grown)])
    states = set(range(loop.states)) - live
    stacked = {i for i, output in enumerate(s.node.outputs[loop.states :]) if facts.unused(output)}
    sliced = {i for i in range(loop.sliced) if loop.slice_parameter(i) not in reached}
    if len(sliced) == loop.sliced:
        sliced.discard(0)
    if not (states or stacked or sliced) or len(states) + len(stacked) == len(s.node.outputs):
        return None

    def drop() -> Patch:
        node, pairs = remove_from_loop(s, loop, states=states, sliced=sliced, stacked=stacked)
        return Patch(pairs, nodes=[node], edit=lambda: list(loop.body))

    return Patch(build=drop)


def _reached(body: ir.Graph, values: Sequence[ir.Value]) -> set[ir.Value]:
    """Return the values of the body on which these depend."""
    reached: set[ir.Value] = set()
    stack = list(values)
    while stack:
        value = stack.pop()
        if value in reached:
            continue
        reached.add(value)
        node = value.producer()
        if node is not None and node.graph is body:
            stack.extend(v for v in node.inputs if v is not None)
            stack.extend(v for inner in facts.bodies(node) for v in captured_values(inner))
    return reached


@rule("eliminate_unchanged_loop_state", on=("Loop", "Scan"), exactness=EXACT)
def state_without_change(s: Site) -> Result:
    """Read state that no run of a loop changes from outside of the loop."""
    loop = read_loop(s)
    if loop is None:
        return None
    still = {i for i in range(loop.states) if trace_identity(loop.update(i), loop.body) is loop.parameter(i)}
    if not still:
        return None
    if len(still) == len(s.node.outputs):
        return Patch({s.node.outputs[i]: value for i in sorted(still) if (value := loop.initial(i)) is not None})

    def drop() -> Patch:
        replaced: dict[ir.Value, ir.Value] = {}
        for i in sorted(still):
            value = loop.initial(i)
            assert value is not None
            replaced[s.node.outputs[i]] = value
            replace_parameter(s.workspace, loop.body, loop.parameter(i), value)
        node, pairs = remove_from_loop(s, loop, states=still)
        return Patch({**replaced, **pairs}, nodes=[node], edit=lambda: list(loop.body))

    return Patch(build=drop)


@rule("eliminate_duplicate_loop_state", on=("Loop", "Scan"), exactness=EXACT)
def state_carried_twice(s: Site) -> Result:
    """Merge two states with equal initial values and updates; read slices of one value once."""
    loop = read_loop(s)
    if loop is None:
        return None
    for i in range(loop.states):
        for j in range(i):
            if loop.initial(i) is loop.initial(j) and _goes_on_alike(loop, j, i):
                return Patch(build=lambda first=j, again=i: _one_state(s, loop, first, again))  # type: ignore[misc]
    seen: dict[tuple[object, ...], int] = {}
    for i in range(loop.sliced):
        way = (loop.axis(s, "scan_input_axes", i), loop.axis(s, "scan_input_directions", i))
        first = seen.setdefault((loop.slice_input(i), *way), i)
        if first != i:
            return Patch(build=lambda first=first, again=i: _one_slice(s, loop, first, again))  # type: ignore[misc]
    return None


def _goes_on_alike(loop: CarriedLoop, first: int, again: int) -> bool:
    numbers = Numbers()
    numbers.same(loop.parameter(first), loop.parameter(again))
    numbers.enter(loop.body)
    return numbers.of(loop.update(first)) == numbers.of(loop.update(again))


def _one_state(s: Site, loop: CarriedLoop, first: int, again: int) -> Patch:
    replace_parameter(s.workspace, loop.body, loop.parameter(again), loop.parameter(first))
    old = s.node.outputs[again]
    node, pairs = remove_from_loop(s, loop, states={again})
    return Patch({**pairs, old: pairs[s.node.outputs[first]]}, nodes=[node], edit=lambda: list(loop.body))


def _one_slice(s: Site, loop: CarriedLoop, first: int, again: int) -> Patch:
    replace_parameter(s.workspace, loop.body, loop.slice_parameter(again), loop.slice_parameter(first))
    node, pairs = remove_from_loop(s, loop, sliced={again})
    return Patch(pairs, nodes=[node], edit=lambda: list(loop.body))


NEVER_FAILS = frozenset(
    {
        *("Abs", "Cast", "Ceil", "Exp", "Floor", "IsInf", "IsNaN", "Neg", "Not"),
        *("Relu", "Round", "Shape", "Sigmoid", "Sign", "Size", "Sqrt", "Tanh"),
    }
)
"""Operators of one tensor that never fail, and may run even if the loop does not."""


@rule("hoist_loop_invariant", on=("Loop", "Scan"), exactness=EXACT)
def same_in_every_run(s: Site) -> Result:
    """Hoist a body's computations on outer values alone before the loop."""
    loop = read_loop(s)
    if loop is None:
        return None
    if immovable_reason(s.workspace, loop.body) is not None:
        return None
    runs = is_certain_to_run(s, loop)
    outputs = set(loop.body.outputs)
    inside = {v for v in loop.body.initializers.values() if v in outputs}
    inside.update(loop.body.inputs)
    invariant: list[ir.Node] = []
    for node in loop.body:
        captured = [v for body in facts.bodies(node) for v in captured_values(body)]
        safe = runs or (node.op_type in NEVER_FAILS and facts.dtype(node.inputs[0]) != ir.DataType.STRING)
        if (
            not safe
            or not facts.is_pure(node)
            or facts.is_op(node, "Constant", "Identity")
            or captured
            or facts.bodies(node)
            or any(v in outputs for v in node.outputs)
            or any(v in inside for v in node.inputs if v is not None)
        ):
            inside.update(node.outputs)
        else:
            invariant.append(node)
    if not invariant:
        return None

    def hoist() -> Patch:
        return Patch(nodes=[move_node(s.workspace, node, s.graph) for node in invariant], edit=lambda: [s.node])

    return Patch(build=hoist)
