"""Lowering of groups to kernels: each group is dispatched to a template or to a loop nest."""

from __future__ import annotations

import logging
from collections.abc import Callable

from sardonyx.base.cancellation import raise_if_cancelled
from sardonyx.compiler.analysis.control_flow import CONTROL, results_of
from sardonyx.compiler.analysis.primitive_traits import ORDERED
from sardonyx.compiler.analysis.shape_guards import Equal
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.compiler.codegen.kernel_builder import Index
from sardonyx.compiler.codegen.loop_nest import Unfusable, bound_at, stored
from sardonyx.compiler.lower.attention import write_attention
from sardonyx.compiler.lower.bounded_output import lower_bounded_output
from sardonyx.compiler.lower.context import FunctionContext, KernelWriter, storage_bits
from sardonyx.compiler.lower.extremes import lower_extremes
from sardonyx.compiler.lower.generic_loops import generic_computation
from sardonyx.compiler.lower.images import lower_image
from sardonyx.compiler.lower.launch import Body, Launch
from sardonyx.compiler.lower.maps import lower_map, write_elements
from sardonyx.compiler.lower.matmul import Contraction
from sardonyx.compiler.lower.regions import lower_concat, lower_pad, lower_scatter
from sardonyx.compiler.lower.row_algorithms import lanes_for, lower_row_algorithm, write_fourier_tables
from sardonyx.compiler.lower.row_reductions import lower_rows
from sardonyx.compiler.lower.shared_kernels import SharedKernels
from sardonyx.compiler.lower.trees import lower_trees
from sardonyx.compiler.lower.weight_gradient import lower_weight_gradient
from sardonyx.compiler.schedule.groups import Group
from sardonyx.core.ir.graph import Function, Value, bodies_of
from sardonyx.errors import UnsupportedError

_log = logging.getLogger(__name__)

_DEFECTS = (
    ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, StopIteration, TypeError, ValueError,
)  # fmt: skip
"""Errors that only a defect of a template raises."""


def internal_error(error: Exception) -> str:
    """Return the reason for a refusal by a defect of this package."""
    return f"internal error: {type(error).__name__}: {error}"


class Lowering:
    """Lowering of all groups of a function.

    Args:
        context: Facts about the function, with its groups.
        body: Lowers the body of a loop, or a branch of a choice; the second argument is True for a loop.
        written: Called with each launch.
        shared: The kernels of the groups lowered before, of this function and of others.

    Attributes:
        launches: The launches, in order.
        unfusable: Values to be written to memory contrary to fusion, with the reason.
        refused: Values without a kernel, with the reason. A defect of a template costs the group its kernel, not the
            function.
        blocked: The anchor or root of the group that requires a value of ``unfusable``.
        fault_guards: Pairs of sizes that must be equal for kernels to notice every error in a value
            (:class:`.FaultCoverage`), and to end in time (:mod:`.unstored_sizes`).
    """

    def __init__(
        self,
        context: FunctionContext,
        body: Callable[[Function, bool], Body],
        written: Callable[[Launch], None],
        shared: SharedKernels,
    ) -> None:
        self.context = context
        self.grouping, self.target, self.blocks = context.grouping, context.target, context.blocks
        self._body = body
        self.launches: list[Launch] = []
        self.unfusable: dict[Value, str] = {}
        self.refused: dict[Value, str] = {}
        self.blocked: dict[Value, Value] = {}
        self.fault_guards: list[Equal] = []
        for group in context.grouping.groups:
            raise_if_cancelled()
            built_around = group.anchor or group.root
            try:
                launches = shared.launches(context, group, self.lower)
            except Unfusable as refusal:
                self.unfusable[refusal.value] = "a reader needs elements at other positions than the kernel computes"
                self.blocked[refusal.value] = built_around
            except UnsupportedError as error:
                self.refused[built_around] = error.problem
            except _DEFECTS as error:
                self.refused[built_around] = internal_error(error)
                _log.warning("%s has no kernel: %s", built_around, self.refused[built_around], exc_info=error)
            else:
                self.launches += launches
                for launch in launches:
                    written(launch)

    @property
    def function(self) -> Function:
        """The function whose groups are lowered."""
        return self.context.function

    def lower(self, group: Group) -> list[Launch]:
        """Return the launches of a group.

        Raises:
            Unfusable: A member must be written to memory first.
            UnsupportedError: No kernel computes the group.
        """
        if group.anchor is not None:
            return self._lower_anchor(group, group.anchor)
        op = group.root.op
        if op == "call":
            return lower_trees(self.context, group)
        if op in CONTROL:
            return [self._lower_control_flow(group)]
        if op == "host":
            return self._lower_host(group)
        if op == "concat":
            return lower_concat(self.context, group)
        if op == "pad":
            return lower_pad(self.context, group)
        if op == "scatter":
            return lower_scatter(self.context, group)
        if any(member.op == "reduce" for member in group.members):
            return lower_extremes(self.context, group) or [lower_rows(self.context, group)]
        return [lower_map(self.context, group)]

    def _lower_anchor(self, group: Group, anchor: Value) -> list[Launch]:
        if anchor in self.grouping.attentions:
            w = KernelWriter(self.context, group)
            items = write_attention(w, self.grouping.attentions[anchor])
            return [w.launch(items, "attention")]
        gradient = next((one for one in self.grouping.weight_gradients.values() if one.core is anchor), None)
        if gradient is not None:
            return [lower_weight_gradient(self.context, group, gradient)]
        if anchor.op in ORDERED:
            return self._lower_row_algorithm(group, anchor)
        try:
            if anchor.op == "contract":
                return [self._lower_contraction(group, anchor)]
            return lower_image(self.context, group, anchor)
        except UnsupportedError:
            return [self._lower_without_template(group, anchor)]

    def _lower_contraction(self, group: Group, anchor: Value) -> Launch:
        w = KernelWriter(self.context, group, self.target.lanes(storage_bits(anchor)))
        gates = self.grouping.gates.get(anchor)
        items = Contraction(w, anchor, gates).write()
        return w.launch(items, "contract" if gates is None else "gates")

    def _lower_without_template(self, group: Group, anchor: Value) -> Launch:
        """Emit a contraction, convolution or window by generic loops."""
        w = KernelWriter(self.context, group)
        reader, root, memory = w.reader, group.root, w.located(group.root)
        compute = generic_computation(w, anchor)
        conv = next((conv for conv in self.grouping.convolutions.values() if conv.core is anchor), None)

        def body(position: list[Index]) -> None:
            if conv is None:
                value, at = anchor, position
            else:
                value = conv.result
                number, channel, *spatial = position
                group_index, feature = reader.split(channel, w.kernel.size(shape_of(anchor)[2]))
                at = [group_index, number, feature, *spatial]
            reader.bind(value, bound_at(value, tuple(position), compute(at)))
            stored(reader, root, memory, tuple(position))

        return w.launch(write_elements(w, root, memory, shape_of(root), body, lambda axis: False), anchor.op)

    def _lower_row_algorithm(self, group: Group, anchor: Value) -> list[Launch]:
        launches = []
        if anchor.op == "fft":
            w = KernelWriter(self.context, group, 1)
            launches.append(w.launch(write_fourier_tables(w, anchor), "fft tables"))
        w = KernelWriter(self.context, group, lanes_for(anchor, self.target.lanes(32)))
        return [*launches, w.launch(lower_row_algorithm(w, anchor), anchor.op)]

    def _lower_control_flow(self, group: Group) -> Launch:
        """Return a loop or choice: operands and results are buffers, bodies are lowered separately."""
        root = group.root
        for operand in root.operands:
            if operand.op not in ("constant", "dims"):
                self.context.require_memory(operand)
        bodies = tuple(self._body(body, root.op == "loop") for body in bodies_of(root))
        return Launch("", (), (*root.operands, *results_of(root)), (), 1, root, root.op, group, bodies)

    def _lower_host(self, group: Group) -> list[Launch]:
        for operand in group.root.operands:
            if not operand.is_constant:
                self.context.require_memory(operand)
        return lower_bounded_output(group.root, lambda: KernelWriter(self.context, group, 1), self.target.lanes(32))
