"""The training step as one Core function: forward, backward, clipping, update."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal, cast, get_args

from sardonyx.base.option_checks import require_count, require_instance, require_number
from sardonyx.core import language as L
from sardonyx.core.dim import Dim
from sardonyx.core.eval.trace import Traced, inline, trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function, Value
from sardonyx.core.ir.types import TensorType
from sardonyx.core.language import Tensor
from sardonyx.core.transform.differentiation import gradient
from sardonyx.core.transform.mixed_precision import with_narrow_products
from sardonyx.core.transform.recomputed_operands import with_recomputed_operands
from sardonyx.core.transform.rematerialization import Segments, gradient_in_segments
from sardonyx.core.transform.simplify import simplify
from sardonyx.errors import OptionError
from sardonyx.train.losses.loss import shape_of
from sardonyx.train.optimizers import SAM, Optimizer
from sardonyx.train.optimizers.optimizer import Slot
from sardonyx.train.step.forward import Forward
from sardonyx.train.step.gradient_lengths import length_of, length_type
from sardonyx.train.step.privacy import Privacy, private_gradients
from sardonyx.train.step.row_gradients import RowGradient, row_gradient, rows_at, with_rows

Precision = Literal["float32", "bf16"]
"""The type of products in a step."""

_HALVES = (t.FLOAT16, t.BFLOAT16)


@dataclass(frozen=True)
class Group:
    """Parameters that share an optimizer.

    Attributes:
        optimizer: The optimizer with the options of the group.
        rate_factor: Factor of the learning rate.
        parameters: Positions of the parameters in the forward pass.
    """

    optimizer: Optimizer
    rate_factor: float
    parameters: tuple[int, ...]

    def scalar_names(self) -> tuple[str, ...]:
        """Return the names of the scalars of a step, in the order of the step's input."""
        return tuple(self.optimizer.scalars(1, 1.0))

    def scalars(self, step: int, rate: float) -> list[float]:
        """Return the scalars of a step, in order."""
        return list(self.optimizer.scalars(step, rate * self.rate_factor).values())


@dataclass(frozen=True)
class StepOptions:
    """Options of a step.

    Attributes:
        clip_norm: Largest length of all gradients together; None for any.
        clip_value: Largest magnitude of an element of a gradient; None for any.
        ema: Coefficient of running means of the parameters; None for none.
        rho: Length of the move of :class:`SAM`; 0 for none.
        accumulate: Batches a step.
        masked: Positions of parameters whose zeros stay zero.
        privacy: Clipping and noise of the gradients of samples; None for none.
        precision: ``"bf16"`` computes products in bfloat16; the state and all else are float32.
        sparse: Positions of parameters of which a step updates the rows that its batch reads.
    """

    clip_norm: float | None = None
    clip_value: float | None = None
    ema: float | None = None
    rho: float = 0.0
    accumulate: int = 1
    masked: tuple[int, ...] = ()
    privacy: Privacy | None = None
    precision: Precision = "float32"
    sparse: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.precision not in get_args(Precision):
            raise OptionError(
                f"expected one of {', '.join(get_args(Precision))}, got {self.precision!r}.",
                where="precision",
                remedy="bfloat16 has the range of float32, so that losses need no scale as in float16.",
            )
        for name in ("clip_norm", "clip_value"):
            if getattr(self, name) is not None:
                require_number(getattr(self, name), name, above=0)
        if self.ema is not None:
            require_number(self.ema, "ema", least=0)
            if self.ema >= 1:
                raise OptionError(f"expected a coefficient in [0, 1), got {self.ema}.", where="ema")
        require_count(self.accumulate, "accumulate")
        if self.privacy is not None and (self.rho or self.accumulate > 1):
            raise OptionError(
                "private gradients are those of one batch: SAM and accumulation are not possible.", where="privacy"
            )
        if self.sparse and (self.rho or self.accumulate > 1 or self.privacy is not None or self.ema is not None):
            raise OptionError(
                "SAM, accumulation, privacy and running means of parameters change all rows.",
                where="sparse",
                remedy="Leave out `sparse`, or these options.",
            )
        if self.rho and self.accumulate > 1:
            raise OptionError("SAM computes two gradients of one batch; it accumulates none.", where="accumulate")


@dataclass(frozen=True)
class StateTensor:
    """One tensor of the state of training.

    Attributes:
        name: The name in checkpoints: ``parameter:NAME``, ``statistic:NAME``, ``SLOT:NAME``, ``average:NAME``.
        type: Its type; parameters of 16 bits are held in float32.
        initial: The value of all elements before training; None for tensors that the model gives.
    """

    name: str
    type: TensorType
    initial: float | None


@dataclass(frozen=True)
class Step:
    """Functions of a step over the state.

    Attributes:
        state: The tensors of the state; statistics last.
        gradients: From parameters, statistics and a batch to the loss, the length of all gradients together, the
            outputs, indices and rows of the gradient of each table of ``tables``, the gradients of other parameters,
            and the new statistics; None with accumulation.
        accumulate: From the sums, parameters, statistics and a batch to the loss, the outputs, the new sums and the new
            statistics; None without accumulation.
        means: From the sums to the loss, the length of all gradients together, and the gradients; None without
            accumulation.
        update: From the state without statistics, the scalars of the groups, the gradients, their length if it is
            limited, and indices and rows of each table, to the new rows of ``tables``, and the new state of others.
        sums: The tensors of accumulation: gradients, total and weight of the loss.
        statistics: Positions of statistics in the state.
        groups: The groups of parameters.
        scalars: The types of the numbers of a step, for each group: float64 if a parameter of the group is.
        tables: For each parameter of which rows alone are updated, the positions in the state of the parameter and of
            its slots.
    """

    state: tuple[StateTensor, ...]
    gradients: Function | None
    accumulate: Function | None
    means: Function | None
    update: Function
    sums: tuple[StateTensor, ...]
    statistics: tuple[int, ...]
    groups: tuple[Group, ...]
    scalars: tuple[TensorType, ...]
    tables: tuple[tuple[int, ...], ...] = ()


def build_step(
    forward: Forward, groups: Sequence[Group], options: StepOptions, segments: Segments | None = None
) -> Step:
    """Return the functions of a step.

    The gradients are computed by one function and applied by another, so that a step whose gradients are not finite
    changes nothing, though the state is updated in place.

    Args:
        forward: The forward pass in training mode, with a loss.
        groups: The groups; every parameter is in one.
        options: Clipping, averages, accumulation.
        segments: Segments of :func:`loss_function` of which the backward pass computes some again; None for none.

    Raises:
        UnsupportedError: An operator between a parameter and the loss has no gradient.
        OptionError: No parameter reaches the loss.
    """
    return _Builder(forward, groups, options, segments).build()


def loss_function(forward: Forward, groups: Sequence[Group], options: StepOptions) -> Function:
    """Return the function that a step differentiates: from master parameters, statistics and a batch to the loss."""
    return _Builder(forward, groups, options).loss_function(as_quotient=options.accumulate == 1)


def build_whole_step(forward: Forward, groups: Sequence[Group], options: StepOptions) -> Function:
    """Return a step as one function, without accumulation.

    The function is from the state, the scalars of the groups and a batch to the loss, the length of all gradients
    together, the outputs and the new state.

    Args:
        forward: As of :func:`build_step`.
        groups: As of :func:`build_step`.
        options: As of :func:`build_step`.
    """
    return _Builder(forward, groups, options).whole()


def state_of(forward: Forward, groups: Sequence[Group], ema: bool) -> tuple[list[StateTensor], list[list[Slot]]]:
    """Return the tensors of the state, and the slots of each parameter."""
    count = len(forward.parameters)
    types = [_master(value.type) for value in forward.function.inputs[: count + len(forward.statistics)]]
    slots: list[list[Slot]] = [[] for _ in range(count)]
    for group in groups:
        for i in group.parameters:
            slots[i] = list(group.optimizer.slots(shape_of(types[i])))
    state = [StateTensor(f"parameter:{name}", types[i], None) for i, name in enumerate(forward.parameters)]
    for i, name in enumerate(forward.parameters):
        for slot in slots[i]:
            state.append(StateTensor(f"{slot.name}:{name}", TensorType(types[i].dtype, slot.shape), slot.initial))
    if ema:
        state += [StateTensor(f"average:{name}", types[i], None) for i, name in enumerate(forward.parameters)]
    state += [StateTensor(f"statistic:{name}", types[count + i], None) for i, name in enumerate(forward.statistics)]
    return state, slots


def _master(type: object) -> TensorType:
    assert isinstance(type, TensorType)
    return TensorType(t.FLOAT, type.shape) if type.dtype in _HALVES else type


class _Builder:
    def __init__(
        self, forward: Forward, groups: Sequence[Group], options: StepOptions, segments: Segments | None = None
    ) -> None:
        self.segments = segments
        self.forward, self.groups, self.options = forward, tuple(groups), options
        self.count = len(forward.parameters)
        state, self.slots = state_of(forward, groups, options.ema is not None)
        self.state = tuple(state)
        first = self.count + len(forward.statistics)
        self.batch_types = [value.type for value in forward.function.inputs[first:]]
        if options.privacy is not None and not forward.has_key:
            self.batch_types.append(TensorType(t.INT64, ()))
        self.statistics = tuple(range(len(self.state) - len(forward.statistics), len(self.state)))
        self.wide = length_type(one.type.dtype for one in state[: self.count])
        self.scalars = tuple(self._scalars_of(group) for group in self.groups)
        self.tables = tuple(self._table(i) for i in options.sparse)
        self.in_tables = {position for table in self.tables for position in table}

    def _scalars_of(self, group: Group) -> TensorType:
        dtype = length_type(self.state[i].type.dtype for i in group.parameters)
        return TensorType(dtype, (len(group.scalar_names()),))

    def _table(self, parameter: int) -> tuple[int, ...]:
        """Return the positions in the state of a parameter and of its slots, after a check of its optimizer."""
        optimizer = next(group.optimizer for group in self.groups if parameter in group.parameters)
        if not optimizer.can_update_rows:
            raise OptionError(
                "the optimizer changes rows whose gradient is zero.",
                where=f"sparse, {self.forward.parameters[parameter]}",
                remedy="Use SGD without momentum, Adagrad, Adam or AdamW, with weight_decay=0 (`groups`).",
            )
        first = self.count + sum(len(slots) for slots in self.slots[:parameter])
        return parameter, *range(first, first + len(self.slots[parameter]))

    def build(self) -> Step:
        own = [one.type for one in self.state]
        read = [*own[: self.count], *(own[i] for i in self.statistics)]
        length = [TensorType(self.wide, ())] * (self.options.clip_norm is not None)
        changed = own[: len(own) - len(self.statistics)]
        dense = [own[i] for i in range(self.count) if i not in self.in_tables]
        rows = [type for number, (i, *_) in enumerate(self.tables) for type in _row_types(own[i], number)]
        update = trace("update", self._update, [*changed, *self.scalars, *dense, *length, *rows])
        if self.options.accumulate == 1:
            gradients = self._traced("gradients", self._gradients, read)
            return Step(
                self.state,
                gradients,
                None,
                None,
                simplify(update),
                (),
                self.statistics,
                self.groups,
                self.scalars,
                self.tables,
            )
        sums = self._sums()
        sum_types = [one.type for one in sums]
        accumulate = self._traced("accumulation", self._accumulation, [*sum_types, *read])
        means = simplify(trace("means", self._means, sum_types))
        return Step(
            self.state, None, accumulate, means, simplify(update), sums, self.statistics, self.groups, self.scalars
        )

    def _traced(self, name: str, body: Traced, read: Sequence[TensorType]) -> Function:
        """Return a function of arrays and of a batch, whose arrays errors name."""
        function = simplify(trace(name, body, [*read, *self.batch_types]))
        for value, own in zip(function.inputs[len(read) :], (*self.forward.inputs, *self.forward.labels), strict=False):
            value.origin = own
        return function

    def whole(self) -> Function:
        state_types = [one.type for one in self.state]
        return simplify(trace("training step", self._whole_step, [*state_types, *self.scalars, *self.batch_types]))

    def _sums(self) -> tuple[StateTensor, ...]:
        gradients = [StateTensor(f"gradient:{one.name}", one.type, 0.0) for one in self.state[: self.count]]
        scalars = [StateTensor(name, TensorType(self.wide, ()), 0.0) for name in ("total", "weight")]
        return (*gradients, *scalars)

    # The loss and its gradient.

    def _differentiated(self, as_quotient: bool) -> Function:
        """Return the function for the results of :meth:`loss_function`, then gradients."""
        inner, wrt = self.loss_function(as_quotient), range(self.count)
        whole = gradient(inner, wrt) if self.segments is None else gradient_in_segments(inner, wrt, self.segments)
        if self.options.precision == "bf16":
            # After sums of iterations are products of whole sequences.
            return with_narrow_products(whole, t.BFLOAT16)
        return with_recomputed_operands(whole, len(inner.results)) if self.segments is None else whole

    def loss_function(self, as_quotient: bool) -> Function:
        """Return a function of the master parameters, statistics and batch.

        Its results are the loss (or its total), the total, the weight, outputs and statistics.
        """
        inner = self.forward.function
        types = [_master(value.type) for value in inner.inputs[: self.count]]

        def body(*values: Value) -> list[Value]:
            arguments: list[Value] = list(values)
            for position, declared in enumerate(_tensors(inner.inputs[: self.count])):
                arguments[position] = L.cast(_tensors(values)[position], declared.dtype)
            total, weight, *rest = _tensors(inline(inner, arguments))
            first = total / weight if as_quotient else total
            return [L.cast(first, t.FLOAT) if first.dtype in _HALVES else first, total, weight, *rest]

        return simplify(trace("loss", body, [*types, *(value.type for value in inner.inputs[self.count :])]))

    def _gradients(self, *values: Value) -> list[Value]:
        count = self.count + len(self.statistics)
        parameters, statistics, batch = values[: self.count], values[self.count : count], list(values[count:])
        derived = self._differentiated(as_quotient=True)
        arrays = len(self.forward.inputs) + len(self.forward.labels)
        keys = batch[arrays:] if self.forward.has_key else []
        results = inline(derived, [*parameters, *statistics, *batch[:arrays], *keys])
        loss, outputs, new_statistics, gradients = self._parts(results)
        if self.options.privacy is not None:

            def gradients_of(sample: list[Value]) -> list[Tensor]:
                return self._parts(inline(derived, [*parameters, *statistics, *sample, *keys]))[3]

            own, (key,) = _tensors(parameters), _tensors(batch[arrays:])
            gradients = private_gradients(self.options.privacy, gradients_of, batch[:arrays], own, key)
        if self.options.rho:
            scale = self.options.rho / (length_of(gradients) + 1e-12)
            moved = [p + L.cast(scale, p.dtype) * g for p, g in zip(_tensors(parameters), gradients, strict=True)]
            gradients = self._parts(inline(derived, [*moved, *statistics, *batch]))[3]
        rows = [row_gradient(gradients[i], self.forward.parameters[i]) for i in self.options.sparse]
        dense = self._limited([gradient for i, gradient in enumerate(gradients) if i not in self.options.sparse])
        rows = [RowGradient(one.indices, *self._limited([one.rows, one.sums])) for one in rows]
        length = length_of([*dense, *(one.sums for one in rows)])
        parts = [part for one in rows for part in (one.indices, one.rows)]
        return [loss, length, *outputs, *parts, *dense, *new_statistics]

    def _whole_step(self, *values: Value) -> list[Value]:
        first, second = len(self.state), len(self.state) + len(self.groups)
        state, scalars, batch = values[:first], values[first:second], values[second:]
        statistics = [state[i] for i in self.statistics]
        results = self._gradients(*state[: self.count], *statistics, *batch)
        outputs = 2 + len(self.forward.outputs)
        end = len(results) - len(statistics)
        rows, gradients = (
            results[outputs : outputs + 2 * len(self.tables)],
            results[outputs + 2 * len(self.tables) : end],
        )
        length = results[1:2] * (self.options.clip_norm is not None)
        changed = state[: first - len(statistics)]
        updated = iter(self._update(*changed, *scalars, *gradients, *length, *rows))
        new: dict[int, Value] = {}
        for table, indices in zip(self.tables, _tensors(rows[::2]), strict=True):
            for i, old in zip(table, _tensors([state[i] for i in table]), strict=True):
                new[i] = with_rows(old, indices, _tensors([next(updated)])[0])
        new_state = [new[i] if i in new else next(updated) for i in range(len(changed))]
        return [*results[:outputs], *new_state, *results[end:]]

    def _accumulation(self, *values: Value) -> list[Value]:
        count = self.count + 2
        sums, read = values[:count], values[count:]
        results = inline(self._differentiated(as_quotient=False), read)
        total, weight = _tensors(results[1:3])
        _, outputs, new_statistics, gradients = self._parts(results)
        added = [a + b for a, b in zip(_tensors(sums[: self.count]), gradients, strict=True)]
        scalars = [s + L.cast(x, s.dtype) for s, x in zip(_tensors(sums[self.count :]), (total, weight), strict=True)]
        return [total / weight, *outputs, *added, *scalars, *new_statistics]

    def _means(self, *sums: Value) -> list[Value]:
        total, weight = _tensors(sums[self.count :])
        gradients = self._limited([g / L.cast(weight, g.dtype) for g in _tensors(sums[: self.count])])
        return [total / weight, length_of(gradients), *gradients]

    def _limited(self, gradients: list[Tensor]) -> list[Tensor]:
        limit = self.options.clip_value
        return gradients if limit is None else [L.clip(g, -limit, limit) for g in gradients]

    def _parts(self, results: Sequence[Value]) -> tuple[Value, list[Value], list[Value], list[Tensor]]:
        outputs = len(self.forward.outputs)
        end = 3 + outputs + len(self.forward.statistics)
        # Sizes of the batch that must equal a size of a parameter, e.g. those ahead of Flatten, are checked in a call.
        gradients = [
            L.of_shape(gradient, one.type.shape or (), f"the gradient of {one.name}")
            for gradient, one in zip(_tensors(results[end:]), self.state[: self.count], strict=True)
        ]
        return results[0], list(results[3 : 3 + outputs]), list(results[3 + outputs : end]), gradients

    # The update.

    def _update(self, *values: Value) -> list[Value]:
        sparse = self.options.sparse
        ends = [len(self.state) - len(self.statistics), len(self.groups), self.count - len(sparse)]
        first, second, third = (sum(ends[: i + 1]) for i in range(3))
        state, scalars, dense = _tensors(values[:first]), values[first:second], _tensors(values[second:third])
        rest = _tensors(values[third:])
        length, rows = rest[: len(rest) - 2 * len(sparse)], rest[len(rest) - 2 * len(sparse) :]
        for table, indices in zip(self.tables, rows[::2], strict=True):
            for i in table:
                state[i] = rows_at(state[i], indices)
        others, of_rows = iter(dense), dict(zip(sparse, rows[1::2], strict=True))
        gradients = [of_rows[i] if i in of_rows else next(others) for i in range(self.count)]
        if length:
            scale = L.minimum(self.options.clip_norm / (length[0] + 1e-6), 1.0)  # type: ignore[operator]
            gradients = [g * L.cast(scale, g.dtype) for g in gradients]
        parameters = state[: self.count]
        slots: list[list[Tensor]] = []
        at = self.count
        for own in self.slots:
            slots.append(state[at : at + len(own)])
            at += len(own)
        for group, vector in zip(self.groups, _tensors(scalars), strict=True):
            for i in group.parameters:
                p, g = parameters[i], gradients[i]
                numbers = {name: L.cast(L.entry(vector, k), p.dtype) for k, name in enumerate(group.scalar_names())}
                by_name = dict(zip((slot.name for slot in self.slots[i]), slots[i], strict=True))
                parameters[i], new = group.optimizer.update(p, g, by_name, numbers)
                if i in self.options.masked:
                    parameters[i] = L.where(L.equal(p, 0), 0, parameters[i])
                slots[i] = [new[slot.name] for slot in self.slots[i]]
        averages: list[Tensor] = []
        if (share := self.options.ema) is not None:
            old = state[at : at + self.count]
            averages = [share * a + (1 - share) * p for a, p in zip(old, parameters, strict=True)]
        new_state = [*parameters, *(value for own in slots for value in own), *averages]
        changed_rows = [new_state[i] for table in self.tables for i in table]
        return [*changed_rows, *(value for i, value in enumerate(new_state) if i not in self.in_tables)]


def _row_types(table: TensorType, number: int) -> list[TensorType]:
    """Return the types of indices and rows of the gradient of a table."""
    assert table.shape is not None
    count = Dim.symbol(f"rows_{number}")
    return [TensorType(t.INT64, (count,)), TensorType(table.dtype, (count, *table.shape[1:]))]


def loss_gradients(forward: Forward) -> Function:
    """Return the function of the arguments of a forward pass for the gradients of the mean loss by parameters."""
    inner = forward.function

    def mean(*values: Value) -> list[Value]:
        total, weight = _tensors(inline(inner, values)[:2])
        return [total / weight]

    derived = gradient(trace("mean loss", mean, [x.type for x in inner.inputs]), range(len(forward.parameters)))
    return simplify(
        trace("gradients", lambda *values: inline(derived, values)[1:], [value.type for value in inner.inputs])
    )


def _tensors(values: Sequence[Value]) -> list[Tensor]:
    return cast("list[Tensor]", list(values))


def make_groups(
    optimizer: Optimizer | SAM, names: Sequence[str], options: Mapping[str, Mapping[str, float]] | None
) -> tuple[Group, ...]:
    """Return the groups of parameters.

    Args:
        optimizer: The optimizer.
        names: Names of the parameters.
        options: Options by pattern of names: ``rate`` is a factor of the rate, all others replace options of the
            optimizer. A parameter belongs to the first pattern that matches.

    Raises:
        OptionError: A pattern matches no parameter, or an option is unknown.
    """
    base = optimizer.base if isinstance(optimizer, SAM) else optimizer
    free = list(range(len(names)))
    groups = []
    options = {} if options is None else options
    require_instance(options, Mapping, "groups", "options by pattern of names")
    for pattern, changes in options.items():
        require_instance(changes, Mapping, f"groups, {pattern}", "options by name")
        own = [i for i in free if fnmatch.fnmatchcase(names[i], pattern)]
        if not own:
            raise OptionError(f"no parameter matches {pattern!r}.", where="groups")
        known = {one.name for one in fields(base)} - {"rate"}
        unknown = set(changes) - known - {"rate"}
        if unknown:
            raise OptionError(
                f"the optimizer has no option {min(unknown)!r}.",
                where=f"groups, {pattern}",
                remedy=f"Options: rate, {', '.join(sorted(known))}.",
            )
        free = [i for i in free if i not in own]
        require_number(changes.get("rate", 1.0), f"groups, {pattern}, rate", least=0)
        changed = replace(base, **{name: value for name, value in changes.items() if name != "rate"})
        groups.append(Group(changed, float(changes.get("rate", 1.0)), tuple(own)))
    if free:
        groups.append(Group(base, 1.0, tuple(free)))
    return tuple(groups)
