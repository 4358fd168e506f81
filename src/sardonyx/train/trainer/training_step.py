"""The state of a training, and its steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sardonyx.base.option_checks import require_count
from sardonyx.core.ir.graph import Function
from sardonyx.core.ir.types import TensorType
from sardonyx.errors import ExecutionError, OptionError
from sardonyx.model import Loadable, load
from sardonyx.runtime.session import Session
from sardonyx.train.data.batches import as_declared, require_names
from sardonyx.train.losses import Loss, loss_of
from sardonyx.train.optimizers import SAM, Optimizer, optimizer_of
from sardonyx.train.schedules import Plateau, Schedule
from sardonyx.train.step.forward import KEY, BatchNormMode, build_forward, output_producer
from sardonyx.train.step.inference import Inference
from sardonyx.train.step.initial_state import initial_state, positions_with_zeros
from sardonyx.train.step.memory_budget import MemoryBudget
from sardonyx.train.step.non_finite import first_non_finite
from sardonyx.train.step.privacy import Privacy
from sardonyx.train.step.reachability import unreached_parameters
from sardonyx.train.step.row_gradients import select_tables
from sardonyx.train.step.step import (
    Precision,
    Step,
    StepOptions,
    build_step,
    build_whole_step,
    loss_function,
    make_groups,
)
from sardonyx.train.step.step_programs import Reduce, StepPrograms
from sardonyx.train.trainable.adapter_graphs import with_adapters
from sardonyx.train.trainable.lora import LoRA
from sardonyx.train.trainable.model_weights import with_inputs_as_weights
from sardonyx.train.trainable.parameters import find_parameters, select_parameters, selection_notes
from sardonyx.train.trainable.quantized import simulated_form
from sardonyx.train.trainable.trainable_models import trainable_form
from sardonyx.train.trainer.checkpoints import Position
from sardonyx.train.trainer.history import History
from sardonyx.train.trainer.metrics import Metric, metrics_of

_LARGEST_SCALAR = float(np.finfo(np.float32).max)


class TrainingStep:
    """The state of a training, and its steps; for the options see :class:`.Trainer`."""

    def __init__(
        self,
        model: Loadable,
        loss: Loss | str | Callable[..., Any] = "cross-entropy",
        optimizer: Optimizer | SAM | str = "adamw",
        *,
        trainable: str | Sequence[str] = "*",
        metrics: str | Metric | Sequence[str | Metric] = (),
        groups: Mapping[str, Mapping[str, float]] | None = None,
        batch_norm: BatchNormMode = "train",
        dropout: Mapping[str, float] | None = None,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        ema: float | None = None,
        accumulate: int = 1,
        teacher: Loadable | None = None,
        lora: LoRA | None = None,
        weights: Mapping[str, Any] | None = None,
        keep_zeros: bool = False,
        sparse: str | Sequence[str] = (),
        privacy: Privacy | None = None,
        reduce: Reduce | None = None,
        precision: Precision = "float32",
        max_memory: int | None = None,
        seed: int = 0,
        threads: int | None = None,
    ) -> None:
        require_count(seed, "seed", least=0, limit=1 << 31)
        if batch_norm not in ("train", "frozen"):
            raise OptionError(f"expected 'train' or 'frozen', got {batch_norm!r}.", where="batch_norm")
        self._loss = loss_of(loss)
        self._optimizer, self._seed, self._threads = optimizer_of(optimizer), seed, threads
        self._source = load(model)
        if weights:
            self._source = with_inputs_as_weights(self._source, weights)
        self._quantized = simulated_form(self._source)
        if lora is not None and self._quantized is not None:
            raise OptionError(
                "adapters of quantized weights cannot be merged.", where="lora", remedy="Train the float model."
            )
        self._model = trainable_form(self._source) if self._quantized is None else self._quantized.model
        self._lora, self._base = lora, self._model
        parameters = find_parameters(self._model)
        selected = [] if lora and trainable == "*" else select_parameters(parameters, trainable)
        if lora is not None:
            self._model, adapters = with_adapters(self._model, lora, seed, selected)
            selected += [name for name in adapters if name not in selected]
        self._forward = build_forward(
            self._model, selected, self._loss, training=True, batch_norm=batch_norm, dropout=dropout
        )
        self._metrics = metrics_of(metrics, self._loss, of_probabilities=self.reads_probabilities)
        rho = self._optimizer.rho if isinstance(self._optimizer, SAM) else 0.0
        masked = positions_with_zeros(self._model, selected) if keep_zeros else ()
        tables = tuple(select_tables(parameters, selected, sparse))
        options = StepOptions(clip_norm, clip_value, ema, rho, accumulate, masked, privacy, precision, tables)
        if privacy is not None and self._forward.statistics:
            raise OptionError(
                "statistics of a batch mix its samples.", where="privacy", remedy="Use batch_norm='frozen'."
            )
        self._groups = make_groups(self._optimizer, selected, groups)
        self._step = build_step(self._forward, self._groups, options)
        self._options = options
        if reduce is not None and (accumulate > 1 or privacy is not None or tables):
            raise OptionError(
                "means over processes are those of one batch, of all rows, without noise.", where="reduce"
            )
        self._work = StepPrograms(
            self._step, initial_state(self._step, self._model), options, threads,
            bind_at_once=max_memory is not None, reduce=reduce,
        )  # fmt: skip
        self._budget = None if max_memory is None else self._memory_budget(max_memory)
        self._evaluation: Inference | None = None
        self._session: Session | None = None
        self._session_weights = (0, False)
        self._teacher = None if teacher is None else self._teacher_session(teacher)
        self._position = Position()
        self._waiting = 0
        self._outputs: Sequence[np.ndarray] = ()
        self._last_batch: tuple[dict[str, np.ndarray], list[np.ndarray]] | None = None
        self.parameters = tuple(selected)
        self.notes = (*self._forward.notes, *selection_notes(parameters, selected))
        if unreached := unreached_parameters(self._forward):
            self.notes += (f"No gradient reaches {', '.join(unreached)}.",)
        if tables:
            names = ", ".join(selected[i] for i in tables)
            self.notes += (f"Of {names} a step updates the rows that its batch reads; all others stay as they are.",)
        if self._quantized is not None:
            self.notes += ("The model is quantized: weights and activations are rounded in training.",)
        self.history = History()
        self._types = self.batch_types
        self._accepted: dict[str, tuple[tuple[int, ...], np.dtype]] = {}

    def _teacher_session(self, teacher: Loadable) -> Session:
        """Return a session of the teacher, after a check that its inputs are those of a batch.

        Raises:
            OptionError: The loss reads no teacher, or the teacher reads other arrays or types than a batch has.
        """
        if getattr(self._loss, "teacher", None) is None:
            raise OptionError(
                "the loss reads no outputs of a teacher.", where="teacher", remedy="Use `loss=Distillation()`."
            )
        session = Session(load(teacher), compile="wait")
        types = {**dict(zip(self._forward.inputs, self._input_types(), strict=True)), **self._forward.labels}
        for info in session.get_inputs():
            own = types.get(info.name)
            if own is None:
                raise OptionError(
                    f"the teacher reads {info.name!r}, and a batch has no such array.",
                    where="teacher",
                    remedy=f"A batch has {', '.join(self._forward.inputs)}: rename the input by `sardonyx rename`.",
                )
            if len(info.shape or ()) != len(own.shape or ()):
                raise OptionError(
                    f"the teacher's input {info.name!r} has rank {len(info.shape or ())}, that of the student "
                    f"{len(own.shape or ())}.",
                    where="teacher",
                )
        return session

    @property
    def loss_output(self) -> str:
        """The name of the output that the loss reads."""
        return self._loss.output_name(self._forward.outputs)

    @property
    def reads_probabilities(self) -> bool:
        """True if the output of the loss is the result of a ``Sigmoid``, which the loss does not compute."""
        producer = output_producer(self._model, self.loss_output)
        return producer is not None and producer.op_type == "Sigmoid" != self._loss.undone

    def _memory_budget(self, limit: int) -> MemoryBudget:
        require_count(limit, "max_memory")
        forward, groups, options = self._forward, self._groups, self._options
        loss = loss_function(forward, groups, options)
        return MemoryBudget(limit, self._work, lambda segments: build_step(forward, groups, options, segments), loss)

    # One step.

    def planned_bytes(self, batch: Mapping[str, Any] | Sequence[Any]) -> int | None:
        """Return the most bytes that a step with a batch holds, by the plan of its compiled program.

        State, gradients and all values of the forward and backward pass count. The result is None if parts of the step
        are interpreted, which have no plan.

        Args:
            batch: As of :meth:`step`.

        Raises:
            ResourceError: The step does not fit ``max_memory``.
        """
        arguments = self._arguments(self._checked(batch))
        self._fit_budget(arguments)
        return self._work.planned_bytes(arguments)

    def _fit_budget(self, arguments: Sequence[np.ndarray]) -> None:
        if self._budget is None:
            return
        before = self._budget.note
        self._budget.fit(arguments)
        if self._budget.note != before:
            self.notes = (*(note for note in self.notes if note != before), self._budget.note)

    @property
    def loss(self) -> Loss:
        """The loss."""
        return self._loss

    @property
    def batch_types(self) -> dict[str, TensorType]:
        """The types of the arrays of a batch by name: inputs, then labels."""
        inputs = zip(self._forward.inputs, self._input_types(), strict=True)
        labels = {name: type for name, type in self._forward.labels.items() if not self._computes(name)}
        return {**dict(inputs), **labels}

    @property
    def batch_names(self) -> tuple[str, ...]:
        """The names of the arrays of a batch as the step reads them: inputs, labels, and the key of random numbers."""
        return (*self._forward.inputs, *self._forward.labels, *[KEY] * self._has_key)

    @property
    def _has_key(self) -> bool:
        return self._forward.has_key or self._options.privacy is not None

    @property
    def plan(self) -> Step:
        """The functions of a step and the tensors of its state."""
        return self._step

    def whole_step(self) -> Function:
        """Return a step as one function; see :func:`.build_whole_step`."""
        return build_whole_step(self._forward, self._groups, self._options)

    @property
    def step_count(self) -> int:
        """The number of steps that the parameters have taken."""
        return self._position.step

    @property
    def optimizer(self) -> Optimizer | SAM:
        """The optimizer."""
        return self._optimizer

    def step_numbers(self, total: int | None = None) -> list[np.ndarray]:
        """Return the numbers of the next step for each group of parameters, such as the learning rate.

        Args:
            total: Steps in all, for schedules that depend on them.
        """
        types = [type.dtype.numpy() for type in self._step.scalars]
        return [np.array(numbers, type) for numbers, type in zip(self._scalars(total), types, strict=True)]

    def _check_values(self, labels: Mapping[str, np.ndarray]) -> None:
        if not self._forward.own_labels:  # Values that the model computes are known in the step alone.
            self._loss.check(labels, self._forward.outputs)

    def _computes(self, label: str) -> bool:
        return self._teacher is not None and label == getattr(self._loss, "teacher", None)

    def _input_types(self) -> list[TensorType]:
        first = len(self._forward.parameters) + len(self._forward.statistics)
        values = self._forward.function.inputs[first : first + len(self._forward.inputs)]
        return [value.type for value in values]  # type: ignore[misc]

    def step(self, batch: Mapping[str, Any] | Sequence[Any]) -> float:
        """Train on one batch and return its loss, before the update.

        Args:
            batch: Arrays by name, or in the order of the inputs and then the labels.

        Raises:
            FeedError: The batch does not fit the model, or a label is out of range.
            ExecutionError: The loss is not finite; the message names the first node. The parameters are unchanged.
            OptionError: The learning rate of the step exceeds the range of float32.
        """
        return self._train(self._checked(batch), None)

    def step_outputs(self, batch: Mapping[str, Any] | Sequence[Any]) -> tuple[float, dict[str, np.ndarray]]:
        """Train on one batch; return its loss and the outputs of the model, both before the update.

        The outputs are those of the training mode: with dropout, and with statistics of the batch.

        Args:
            batch: As of :meth:`step`.

        Raises:
            OptionError: The trainer accumulates batches, and has the outputs of none alone.
            SardonyxError: See :meth:`step`.
        """
        if self._work.accumulates:
            raise OptionError("expected a trainer without accumulation.", where="step_outputs")
        loss = self._train(self._checked(batch), None)
        return loss, dict(zip(self._forward.outputs, (np.array(array) for array in self._outputs), strict=True))

    def _checked(self, batch: Mapping[str, Any] | Sequence[Any]) -> dict[str, np.ndarray]:
        types, accepted = self._types, self._accepted
        if accepted and type(batch) is dict and batch.keys() == accepted.keys():
            for name, (shape, dtype) in accepted.items():
                x = batch[name]
                if type(x) is not np.ndarray or x.shape != shape or x.dtype is not dtype or not x.flags.c_contiguous:
                    break
            else:  # As the batch before: the checks take as long as a small step.
                return {name: batch[name] for name in types}
        if isinstance(batch, Mapping):
            named = batch
        else:
            arrays = list(batch) if isinstance(batch, (tuple, list)) else [batch]
            if len(arrays) != len(types):
                raise OptionError(
                    f"expected {len(types)} arrays ({', '.join(types)}), got {len(arrays)}.", where="batch"
                )
            named = dict(zip(types, arrays, strict=True))
        checked = {
            name: as_declared(x, types[name], f"batch, {name}", self._remedies.get(name, ""))
            for name, x in require_names(named, types).items()
        }
        self._accepted = {name: (x.shape, x.dtype) for name, x in checked.items()}
        return checked

    @property
    def _classes(self) -> int | None:
        """The number of classes of a classifier whose labels are indices; None if unknown."""
        return None if self._forward.own_labels else self._loss.classes(self._forward.outputs)

    @property
    def _remedies(self) -> dict[str, str]:
        """The instructions for arrays that do not fit, by name: labels have the shape that the loss says."""
        return dict.fromkeys(self._forward.labels, self._loss.label_remedy)

    def _train(self, batch: dict[str, np.ndarray], total: int | None) -> float:
        arguments = self._arguments(batch)
        self._fit_budget(arguments)
        loss, length, outputs = self._work.gradients(arguments)
        if not (math.isfinite(loss) and math.isfinite(length)):
            raise self._non_finite(loss, batch)
        self._outputs = outputs
        if self._work.accumulates:
            self._waiting += 1
            if self._waiting < self._options.accumulate:
                return loss
            self._apply_sums(total, batch)
            return loss
        self._work.update(self._scalars(total))
        self._position = replace(self._position, step=self._position.step + 1)
        return loss

    def _apply_sums(self, total: int | None, batch: dict[str, np.ndarray] | None) -> None:
        loss, length = self._work.means()
        if not (math.isfinite(loss) and math.isfinite(length)):
            raise self._non_finite(loss, batch or {})
        self._work.update(self._scalars(total))
        self._waiting = 0
        self._position = replace(self._position, step=self._position.step + 1)

    def _arguments(self, batch: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Return the arguments of a batch, with the teacher's outputs and the key of dropout."""
        labels = {name: batch[name] for name in self._forward.labels if name in batch}
        if self._teacher is not None:
            name = self._loss.teacher  # type: ignore[attr-defined]
            names = {info.name for info in self._teacher.get_inputs()}
            logits = self._teacher.run(None, {n: a for n, a in batch.items() if n in names})[0]
            labels[name] = as_declared(logits, self._forward.labels[name], f"the teacher's output, {name}")
        self._check_values(labels)
        feeds = {name: batch[name] for name in self._forward.inputs}
        self._last_batch = feeds, [labels[name] for name in self._forward.labels]
        arguments = [*feeds.values(), *self._last_batch[1]]
        if self._has_key:
            step = self._position.step * self._options.accumulate + self._waiting
            arguments.append(np.array((self._seed << 32) + step, np.int64))
        return arguments

    @property
    def base_optimizer(self) -> Optimizer:
        """The optimizer of the update: the wrapped one of :class:`SAM`."""
        return self._optimizer.base if isinstance(self._optimizer, SAM) else self._optimizer

    def _rate(self, total: int | None, later: int = 0) -> float:
        rate = self.base_optimizer.rate
        if isinstance(rate, Plateau):
            watched = self.history.get(rate.metric, [])
            return rate.after(watched).rate
        return rate.at(self._position.step + 1 + later, total) if isinstance(rate, Schedule) else float(rate)

    def _scalars(self, total: int | None, later: int = 0) -> list[list[float]]:
        """Return the numbers of the next step, or of the one so many steps later, for each group."""
        rate, step = self._rate(total, later), self._position.step + 1 + later
        numbers = [group.scalars(step, rate) for group in self._groups]
        if not all(abs(number) <= _LARGEST_SCALAR for group in numbers for number in group):
            raise OptionError(
                f"numbers of step {step} exceed the range of float32 with a learning rate of {rate:g}.",
                where="rate",
                remedy="Use a smaller learning rate; the parameters are those before the step.",
            )
        return numbers

    def _non_finite(self, loss: float, batch: Mapping[str, np.ndarray]) -> ExecutionError:
        step = self._position.step + 1
        for name, array in batch.items():
            if array.ndim and array.dtype.kind == "f" and not np.isfinite(array).all():
                rows = np.isfinite(array.reshape(len(array), -1)).all(axis=1)
                return ExecutionError(
                    f"{int((~rows).sum())} of {len(rows)} samples of the batch of step {step} hold NaN or infinity.",
                    where=name, remedy="Remove these samples; the parameters are those before the step.",
                )  # fmt: skip
        values = [*self._forward_arguments(), *self._arguments(dict(batch))] if batch else []
        where = first_non_finite(self._forward.function, values) if values else None
        return ExecutionError(
            f"the loss of step {step} is {loss}, expected a finite number." if not math.isfinite(loss)
            else f"the length of the gradient of step {step} is not finite.",
            where=where or "the gradient",
            remedy="Use a smaller learning rate, `clip_norm`, or other data; the parameters are those before the step.",
        )  # fmt: skip

    def _forward_arguments(self) -> list[np.ndarray]:
        """Return parameters and statistics in the types of the forward pass."""
        count = len(self._forward.parameters)
        state = self._work.state
        values = [*state[:count], *(state[i] for i in self._step.statistics)]
        inputs = self._forward.function.inputs
        return [
            np.asarray(value, declared.type.dtype.numpy())  # type: ignore[union-attr]
            for value, declared in zip(values, inputs, strict=False)
        ]

    # State.

    def state(self) -> dict[str, np.ndarray]:
        """Return copies of all tensors of the state by name."""
        return {name: array.copy() for name, array in self.state_views().items()}

    def state_views(self) -> dict[str, np.ndarray]:
        """Return all tensors of the state by name, which later steps change; callers must not write to the arrays."""
        return {one.name: array for one, array in zip(self._step.state, self._work.state, strict=True)}

    def load_state(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Set the state to tensors of the same names and shapes.

        Raises:
            OptionError: The tensors are those of another training.
        """
        for one, array in zip(self._step.state, self._work.state, strict=True):
            if one.name not in tensors or tensors[one.name].shape != array.shape:
                raise OptionError(f"expected {one.name!r} of shape {list(array.shape)} in the state.", where="state")
        self._work.replace_state([np.asarray(tensors[one.name]) for one in self._step.state])
