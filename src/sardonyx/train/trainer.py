"""Training of a model file."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.base.signals import interrupted_after
from sardonyx.core.ir.graph import Function
from sardonyx.core.ir.types import TensorType
from sardonyx.errors import ExecutionError, OptionError, VerificationError
from sardonyx.model import Loadable, load, save
from sardonyx.runtime.session import Session
from sardonyx.train.batches import Batches, Data, as_declared, require_names
from sardonyx.train.callbacks import Callback, Moment
from sardonyx.train.checkpoints import Position, checkpoint_file, read_checkpoint, write_checkpoint
from sardonyx.train.forward import KEY, LOSS, BatchNormMode, Forward, build_forward
from sardonyx.train.history import History
from sardonyx.train.inference import Inference
from sardonyx.train.initial_state import initial_state, positions_with_zeros
from sardonyx.train.lora import Adapter, LoRA, with_adapters
from sardonyx.train.losses import Loss, loss_of
from sardonyx.train.memory_budget import MemoryBudget
from sardonyx.train.metrics import Mean, Metric, Part, metrics_of
from sardonyx.train.model_weights import equal_answers, with_inputs_as_weights, with_weights
from sardonyx.train.non_finite import first_non_finite
from sardonyx.train.optimizers import SAM, Optimizer, optimizer_of
from sardonyx.train.option_checks import require_count
from sardonyx.train.parameters import find_parameters, select_parameters, selection_notes
from sardonyx.train.privacy import Privacy
from sardonyx.train.progress import progress_line
from sardonyx.train.quantized import simulated_form
from sardonyx.train.reachability import unreached_parameters
from sardonyx.train.schedules import Plateau, Schedule
from sardonyx.train.step import Precision, Step, StepOptions, build_step, build_whole_step, loss_function, make_groups
from sardonyx.train.step_programs import Reduce, StepPrograms
from sardonyx.train.trainable_models import trainable_form


class Trainer:
    """A model in training.

    Args:
        model: A path, bytes, ``onnx.ModelProto`` or ``onnx_ir.Model``, which is not changed.
        loss: A :class:`Loss`, a name such as ``"cross-entropy"``, or a function of outputs and labels over Core.
        optimizer: An optimizer, or a name such as ``"adamw"``.
        trainable: The parameters to train: ``"*"``, patterns of names of tensors or nodes, ``"biases"``, ``"norms"``,
            ``"last"``, ``"last:N"``.
        metrics: Metrics of evaluations, by name or as :class:`Metric`; each compares the output and labels of the loss.
        groups: Options of the optimizer by pattern of parameter names; ``rate`` is a factor of the learning rate.
        batch_norm: ``"train"`` computes statistics of batches, ``"frozen"`` keeps those of the file.
        dropout: Ratios of ``Dropout`` nodes by pattern of their names; those of the file by default.
        clip_norm: Largest length of all gradients together.
        clip_value: Largest magnitude of an element of a gradient.
        ema: Coefficient of running means of the parameters, which evaluations and :meth:`save` use on request.
        accumulate: Batches a step; gradients are weighted as in one batch of their sum.
        teacher: A model whose first output is the label ``teacher`` of :class:`Distillation`.
        lora: Adapters that are trained instead of weights; ``trainable`` names further parameters then.
        weights: Weights that are inputs of the model, by name; in the trained model the inputs have default values.
        keep_zeros: If True, weights that are zero stay zero: the masks of a pruned model are preserved.
        privacy: Clipping of the gradients of samples, and noise; see :meth:`Privacy.epsilon` for the guarantee.
        reduce: For training by several processes: a function that replaces each array of a list by its mean over the
            processes, in place, equal to the bit in all. Each process trains on a part of each batch, of equal size.
        precision: ``"bf16"`` rounds the operands and results of products and convolutions to bfloat16, forward and
            backward; parameters, optimizer, losses and norms stay float32.
        max_memory: Most bytes of a step: its state, gradients and values. If they do not fit, the backward pass
            computes parts of the forward pass again. Sums may have another order where other kernels are chosen.
        seed: Seed of the order of samples, of dropout and of adapters.
        threads: Number of threads; None for all processors of the process.

    Attributes:
        parameters: Names of the trained tensors.
        notes: Sentences about choices that were made.
        history: The rows of :meth:`fit`.

    Raises:
        OptionError: An option is impossible, or a pattern selects no parameter.
        UnsupportedError: The model has no trainable parameter, or an operator has no gradient.
        SardonyxError: The model cannot be read.

    Example:
        >>> trainer = Trainer("model.onnx", loss="cross-entropy", optimizer=AdamW(1e-3), metrics=["top1"])
        >>> history = trainer.fit({"image": x, "labels": y}, epochs=3)
        >>> trainer.save("tuned.onnx")
    """

    def __init__(
        self,
        model: Loadable,
        loss: Loss | str | Callable[..., Any] = "cross-entropy",
        optimizer: Optimizer | SAM | str = "adamw",
        *,
        trainable: str | Sequence[str] = "*",
        metrics: Sequence[str | Metric] = (),
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
        self._loss, self._metrics = loss_of(loss), metrics_of(metrics)
        self._optimizer, self._seed, self._threads = optimizer_of(optimizer), seed, threads
        self._source = load(model)
        if weights:
            self._source = with_inputs_as_weights(self._source, weights)
        if lora is not None and simulated_form(self._source) is not None:
            raise OptionError(
                "adapters of quantized weights cannot be merged.", where="lora", remedy="Train the float model."
            )
        self._quantized = simulated_form(self._source)
        self._model = trainable_form(self._source if self._quantized is None else self._quantized.model)
        self._lora, self._base = lora, self._model
        parameters = find_parameters(self._model)
        selected = [] if lora and trainable == "*" else select_parameters(parameters, trainable)
        if lora is not None:
            self._model, adapters = with_adapters(self._model, lora, seed)
            selected += [name for name in adapters if name not in selected]
        self._forward = build_forward(
            self._model, selected, self._loss, training=True, batch_norm=batch_norm, dropout=dropout
        )
        rho = self._optimizer.rho if isinstance(self._optimizer, SAM) else 0.0
        masked = positions_with_zeros(self._model, selected) if keep_zeros else ()
        options = StepOptions(clip_norm, clip_value, ema, rho, accumulate, masked, privacy, precision)
        if privacy is not None and self._forward.statistics:
            raise OptionError(
                "statistics of a batch mix its samples.", where="privacy", remedy="Use batch_norm='frozen'."
            )
        self._groups = make_groups(self._optimizer, selected, groups)
        self._step = build_step(self._forward, self._groups, options)
        self._options = options
        if reduce is not None and (accumulate > 1 or privacy is not None):
            raise OptionError("means over processes are those of one batch, without noise.", where="reduce")
        self._work = StepPrograms(
            self._step, initial_state(self._step, self._model), options, threads,
            bind_at_once=max_memory is not None, reduce=reduce,
        )  # fmt: skip
        self._budget = None if max_memory is None else self._memory_budget(max_memory)
        self._evaluation: Inference | None = None
        self._teacher = None if teacher is None else Session(load(teacher), compile="wait")
        self._position = Position()
        self._waiting = 0
        self._outputs: Sequence[np.ndarray] = ()
        self._last_batch: tuple[dict[str, np.ndarray], list[np.ndarray]] | None = None
        self.parameters = tuple(selected)
        self.notes = (*self._forward.notes, *selection_notes(parameters, selected))
        if unreached := unreached_parameters(self._forward):
            self.notes += (f"No gradient reaches {', '.join(unreached)}.",)
        if self._quantized is not None:
            self.notes += ("The model is quantized: weights and activations are rounded in training.",)
        self.history = History()
        self._types = self.batch_types

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
        key = [KEY] * (self._forward.has_key or self._options.privacy is not None)
        return (*self._forward.inputs, *self._forward.labels, *key)

    @property
    def plan(self) -> Step:
        """The functions of a step and the tensors of its state."""
        return self._step

    def whole_step(self) -> Function:
        """Return a step as one function; see :func:`.build_whole_step`."""
        return build_whole_step(self._forward, self._groups, self._options)

    @property
    def optimizer(self) -> Optimizer | SAM:
        """The optimizer."""
        return self._optimizer

    def forward_passes(self) -> tuple[Forward, Forward]:
        """Return the forward passes in training and in inference mode."""
        return self._forward, self._inference().forward

    def step_numbers(self, total: int | None = None) -> list[np.ndarray]:
        """Return the numbers of the next step for each group of parameters, such as the learning rate.

        Args:
            total: Steps in all, for schedules that depend on them.
        """
        return [np.array(numbers, np.float32) for numbers in self._scalars(total)]

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
        types = self._types
        if isinstance(batch, Mapping):
            named = batch
        else:
            arrays = list(batch) if isinstance(batch, (tuple, list)) else [batch]
            if len(arrays) != len(types):
                raise OptionError(
                    f"expected {len(types)} arrays ({', '.join(types)}), got {len(arrays)}.", where="batch"
                )
            named = dict(zip(types, arrays, strict=True))
        return {name: as_declared(x, types[name], f"batch, {name}") for name, x in require_names(named, types).items()}

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
            labels[name] = as_declared(logits, self._forward.labels[name], name)
        self._loss.check(labels, self._forward.outputs)
        feeds = {name: batch[name] for name in self._forward.inputs}
        self._last_batch = feeds, [labels[name] for name in self._forward.labels]
        arguments = [*feeds.values(), *self._last_batch[1]]
        if self._forward.has_key or self._options.privacy is not None:
            step = self._position.step * self._options.accumulate + self._waiting
            arguments.append(np.array((self._seed << 32) + step, np.int64))
        return arguments

    def _rate(self, total: int | None) -> float:
        base = self._optimizer.base if isinstance(self._optimizer, SAM) else self._optimizer
        rate = base.rate
        if isinstance(rate, Plateau):
            watched = self.history.get(rate.metric, [])
            return rate.after(watched).rate
        return rate.at(self._position.step + 1, total) if isinstance(rate, Schedule) else float(rate)

    def _scalars(self, total: int | None) -> list[list[float]]:
        rate, step = self._rate(total), self._position.step + 1
        return [group.scalars(step, rate) for group in self._groups]

    def _non_finite(self, loss: float, batch: Mapping[str, np.ndarray]) -> ExecutionError:
        values = [*self._forward_arguments(), *self._arguments(dict(batch))] if batch else []
        where = first_non_finite(self._forward.function, values) if values else None
        step = self._position.step + 1
        return ExecutionError(
            f"the loss of step {step} is {loss}, expected a finite number." if not math.isfinite(loss)
            else f"the gradient of step {step} is not finite.",
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

    # Epochs.

    def fit(
        self,
        data: Data,
        *,
        epochs: int = 1,
        batch_size: int = 32,
        shuffle: bool = True,
        steps: int | None = None,
        validation: Data | None = None,
        callbacks: Sequence[Callback] = (),
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_steps: int | None = None,
        resume: bool = False,
        progress: bool | None = None,
    ) -> History:
        """Train for some epochs and return the history.

        Args:
            data: Arrays by name or in order, an ``.npz`` file, a folder with a folder for each class, or an iterable of
                batches (a loader of torch, a dataset of TensorFlow, a list, a generator for one epoch).
            epochs: Epochs in all, including those of the checkpoint that is continued.
            batch_size: Samples of a batch, for whole arrays.
            shuffle: If True, whole arrays are permuted anew each epoch.
            steps: Most batches of an epoch.
            validation: Data of evaluations after each epoch.
            callbacks: Functions called after each epoch; ``"stop"`` ends the training.
            checkpoint: A folder; the state is written after each epoch, and when the training ends by an error or
                Ctrl-C.
            checkpoint_steps: Steps between further checkpoints.
            resume: If True and the folder has a checkpoint, the training goes on from there, equal to the bit.
            progress: If True, print a line of progress; by default on a terminal.

        Raises:
            FeedError: A batch does not fit the model, or a label is out of range.
            ExecutionError: The loss is not finite; the message names the first node.
            OptionError: The checkpoint is of another training.
        """
        require_count(epochs, "epochs")
        for name, option in (("steps", steps), ("checkpoint_steps", checkpoint_steps)):
            if option is not None:
                require_count(option, name)
        if not resume and self._position.epoch >= epochs:
            raise OptionError(
                f"the trainer has trained {self._position.epoch} epochs, and `epochs` counts all.",
                where="epochs",
                remedy=f"Give at least {self._position.epoch + 1}.",
            )
        batches = Batches(data, self.batch_types, batch_size=batch_size, shuffle=shuffle, seed=self._seed)
        file = None if checkpoint is None else checkpoint_file(checkpoint)
        if resume and file is None:
            raise OptionError("expected the folder of a checkpoint.", where="resume", remedy="Give `checkpoint=`.")
        if resume and file is not None and file.exists():
            self._restore(file)
        length = batches.length if steps is None else min(steps, batches.length or steps)
        total = None if length is None else -(-length // self._options.accumulate) * epochs
        with self._kept_on_error(file), progress_line(progress, epochs, length) as shown:
            while self._position.epoch < epochs:
                began = time.perf_counter()
                self._epoch(batches, steps, total, file, checkpoint_steps, shown)
                self._work.require_finite()
                row = self._row(began, total)
                if validation is not None:
                    measured = self.evaluate(validation, batch_size=batch_size)
                    row |= {f"validation_{name}": value for name, value in measured.items()}
                self.history.add(row)
                done = self._position.epoch + 1
                self._position = replace(self._position, epoch=done, batch=0, loss_total=0.0)
                stop = [callback(Moment(done, self._position.step, row, self)) for callback in callbacks]
                if file is not None:
                    self._write(file)
                if "stop" in stop:
                    break
        return self.history

    def _epoch(
        self,
        batches: Batches,
        steps: int | None,
        total: int | None,
        file: Path | None,
        every: int | None,
        shown: Callable[[int, float], None],
    ) -> None:
        for batch in batches.epoch(self._position.epoch, self._position.batch):
            if steps is not None and self._position.batch >= steps:
                break
            before = self._position.step
            # A checkpoint between the update and the new position would apply the batch twice.
            with contextlib.nullcontext() if file is None else interrupted_after():
                loss = self._train(batch, total)
                position = self._position
                self._position = replace(position, batch=position.batch + 1, loss_total=position.loss_total + loss)
            shown(self._position.epoch, loss)
            if file is not None and every and self._position.step > before and self._position.step % every == 0:
                self._write(file)
        if self._waiting:
            self._apply_sums(total, None)
        if not self._position.batch:
            raise OptionError("expected at least one batch.", where="data")

    def _row(self, began: float, total: int | None) -> dict[str, float]:
        position = self._position
        return {
            "epoch": float(position.epoch + 1),
            LOSS: position.loss_total / position.batch,
            "rate": self._rate(total),
            "seconds": time.perf_counter() - began,
        }

    # Evaluation.

    def _inference(self) -> Inference:
        if self._evaluation is None:
            self._evaluation = Inference(
                build_forward(
                    self._model, self.parameters, self._loss, training=False, statistics=self._forward.statistics
                ),
                self._threads,
            )
        return self._evaluation

    def _weights(self, *, average: bool = False) -> dict[str, np.ndarray]:
        """Return parameters and statistics by name, as the trainer holds them."""
        state = dict(zip((one.name for one in self._step.state), self._work.state, strict=True))
        prefix = "average" if average else "parameter"
        if average and self._options.ema is None:
            raise OptionError("the trainer holds no running means.", where="average", remedy="Give `ema=`.")
        weights = {name: state[f"{prefix}:{name}"] for name in self._forward.parameters}
        return weights | {name: state[f"statistic:{name}"] for name in self._forward.statistics}

    def evaluate(self, data: Data, *, batch_size: int = 64, average: bool = False) -> dict[str, float]:
        """Return the loss and the metrics over data, in inference mode.

        Args:
            data: As of :meth:`fit`.
            batch_size: Samples of a batch, for whole arrays.
            average: If True, the running means of the parameters are evaluated.

        Raises:
            FeedError: A batch does not fit the model.
        """
        inference, weights = self._inference(), self._weights(average=average)
        batches = Batches(
            data, self.batch_types, batch_size=batch_size, optional=[self._loss.label] if self._metrics else []
        )
        loss, means = Mean(), [Mean() for _ in self._metrics]
        is_empty = True
        for batch in batches.epoch(0):
            is_empty = False
            arguments = self._arguments(batch)[: len(inference.forward.inputs) + len(inference.forward.labels)]
            total, weight, outputs = inference.run(weights, arguments)
            loss.add(Part(total, weight))
            for mean, metric in zip(means, self._metrics, strict=True):
                labels = batch.get(self._loss.label)
                if labels is None:
                    raise OptionError(f"the loss has no label for {metric.name}.", where="metrics")
                mean.add(metric.part(outputs[self._loss.output_name(inference.forward.outputs)], labels))
        if is_empty:
            raise OptionError("expected at least one batch.", where="data")
        values = {metric.name: metric.finish(mean.value) for metric, mean in zip(self._metrics, means, strict=True)}
        return {LOSS: loss.value, **values}

    def gradients(self, batch: Mapping[str, Any] | Sequence[Any]) -> dict[str, np.ndarray]:
        """Return the gradients of the loss of a batch by parameter, in inference mode, without a step.

        Args:
            batch: As of :meth:`step`.
        """
        arrays = self._arguments(self._checked(batch))
        inference = self._inference()
        count = len(inference.forward.inputs) + len(inference.forward.labels)
        return inference.gradients(self._weights(), arrays[:count])

    def consolidate(self, data: Data, *, samples: int | None = None) -> None:
        """Hold to what the current parameters know of data, with the optimizer :class:`EWC`.

        The mean squared gradient of each sample's loss is added to the importance of each parameter, and the anchors
        move to the current parameters.

        Args:
            data: Samples with labels, as of :meth:`fit`.
            samples: Most samples.

        Raises:
            OptionError: The optimizer is another one, or the data have no sample.
        """
        names = [name for name in self.state() if name.startswith("importance:")]
        if not names:
            raise OptionError(
                "the optimizer holds no importances.", where="consolidate", remedy="Use `optimizer=EWC(...)`."
            )
        sums: dict[str, np.ndarray] = {}
        count = 0
        for batch in Batches(data, self.batch_types, batch_size=1).epoch(0):
            if samples is not None and count >= samples:
                break
            count += 1
            for name, gradient in self.gradients(batch).items():
                squared = np.square(gradient, dtype=np.float64)
                sums[name] = sums[name] + squared if name in sums else squared
        if not count:
            raise OptionError("expected at least one sample.", where="consolidate")
        state = self.state()
        for name in names:
            parameter = name.partition(":")[2]
            state[name] += (sums[parameter] / count).astype(state[name].dtype)
            state[f"anchor:{parameter}"] = state[f"parameter:{parameter}"]
        self.load_state(state)

    def check_labels(self, batch: Mapping[str, np.ndarray]) -> None:
        """Check the labels of a batch.

        Raises:
            FeedError: A label is out of range.
        """
        labels = {name: batch[name] for name in self._forward.labels if name in batch}
        self._loss.check(labels, self._forward.outputs)

    def sample_losses(
        self, batch: Mapping[str, np.ndarray], state: Mapping[str, np.ndarray] | None = None
    ) -> np.ndarray:
        """Return the loss of each sample of a batch in inference mode, float64 [samples].

        Args:
            batch: The inputs and labels, samples in axis 0.
            state: The state of the trainer, see :meth:`state`; the current one by default.
        """
        inference = self._inference()
        weights = self._weights()
        if state is not None:
            weights = {name: state[f"parameter:{name}"] for name in self._forward.parameters}
            weights |= {name: state[f"statistic:{name}"] for name in self._forward.statistics}
        arrays = [np.asarray(batch[name], order="C") for name in self.batch_types]
        losses = np.empty(len(arrays[0]))
        for i in range(len(losses)):
            total, weight, _ = inference.run(weights, [array[i : i + 1] for array in arrays])
            losses[i] = total / weight if weight else 0.0
        return losses

    def file_weights(self) -> dict[str, np.ndarray]:
        """Return the trained weights by name in the types of the file, for :meth:`Session.update_weights`."""
        initializers = self.model().graph.initializers
        names = self._weights() if self._lora is None else self._adapter(self._weights()).targets()
        tensors = {name: initializers[name].const_value for name in names}
        return {name: tensor.numpy() for name, tensor in tensors.items() if tensor is not None}

    def predict(self, feeds: Mapping[str, Any], *, average: bool = False) -> dict[str, np.ndarray]:
        """Return the outputs of the model by name, in inference mode.

        Args:
            feeds: The inputs by name.
            average: If True, the running means of the parameters answer.
        """
        types = dict(zip(self._forward.inputs, self._input_types(), strict=True))
        arrays = {name: as_declared(value, types[name], name) for name, value in require_names(feeds, types).items()}
        plain = Session(self.model(average=average), compile="wait")
        names = [info.name for info in plain.get_outputs()]
        return dict(zip(names, plain.run(None, arrays), strict=True))

    # Results.

    def model(self, *, average: bool = False) -> ir.Model:
        """Return the inference model with the current parameters.

        Args:
            average: If True, the model has the running means of the parameters.
        """
        weights = self._weights(average=average)
        if self._quantized is not None:
            return self._quantized.quantized(weights)
        if self._lora is None:
            return with_weights(self._source, self._model, weights)
        own = {name: array for name, array in weights.items() if name in self._base.graph.initializers}
        return self._adapter(weights).merge(with_weights(self._source, self._base, own))

    def adapter(self, *, average: bool = False) -> Adapter:
        """Return the trained adapters.

        Raises:
            OptionError: The trainer has no adapters.
        """
        if self._lora is None:
            raise OptionError("the trainer has no adapters.", where="lora", remedy="Give `lora=LoRA(...)`.")
        return self._adapter(self._weights(average=average))

    def _adapter(self, weights: Mapping[str, np.ndarray]) -> Adapter:
        assert self._lora is not None
        own = {name: np.array(array) for name, array in weights.items() if name not in self._base.graph.initializers}
        return Adapter(self._lora, own)

    def save(self, path: str | os.PathLike[str], *, average: bool = False) -> float:
        """Write the inference model, after its answers were compared with the trainer's.

        Args:
            path: The file.
            average: If True, the model has the running means of the parameters.

        Returns:
            The largest difference of an output of the loss on the last batch, as a share of the largest element.

        Raises:
            ExecutionError: A weight is infinite or NaN; nothing is written.
            VerificationError: The model answers otherwise than the trainer; nothing is written.
            ModelFileError: The file cannot be written.
        """
        self._work.require_finite()
        model, error = self.model(average=average), 0.0
        if self._last_batch is not None:
            feeds, labels = self._last_batch
            inference = self._inference()
            _, _, expected = inference.run(self._weights(average=average), [*feeds.values(), *labels])
            names = self._loss.reads(inference.forward.outputs)
            error, equal = equal_answers(model, feeds, expected, names, self._loss.undone)
            if not equal:
                raise VerificationError(
                    f"the saved model differs from the trainer by {error:.1e} of the largest element.",
                    where=os.fspath(path),
                )
        save(model, path)
        return error

    def state(self) -> dict[str, np.ndarray]:
        """Return copies of all tensors of the state by name."""
        return {one.name: array.copy() for one, array in zip(self._step.state, self._work.state, strict=True)}

    def load_state(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Set the state to tensors of the same names and shapes.

        Raises:
            OptionError: The tensors are those of another training.
        """
        for one, array in zip(self._step.state, self._work.state, strict=True):
            if one.name not in tensors or tensors[one.name].shape != array.shape:
                raise OptionError(f"expected {one.name!r} of shape {list(array.shape)} in the state.", where="state")
        self._work.replace_state([np.asarray(tensors[one.name]) for one in self._step.state])

    # Checkpoints.

    @property
    def form(self) -> str:
        """The names and types of the state, which a checkpoint must have."""
        return ";".join(f"{one.name}{one.type}" for one in self._step.state)

    def _write(self, file: Path) -> None:
        self._work.require_finite()  # A checkpoint that cannot continue must not replace one that can.
        sums = zip((f"sum {one.name}" for one in self._step.sums), self._work.sums, strict=True)
        position = self._position
        write_checkpoint(
            file,
            {**self.state(), **dict(sums)},
            replace(position, history=self.history.rows, form=self.form, waiting=self._waiting),
        )

    def _restore(self, file: Path) -> None:
        tensors, position = read_checkpoint(file)
        if position.form != self.form:
            raise OptionError(
                "the checkpoint is of another training: its parameters or its optimizer differ.",
                where=os.fspath(file),
                remedy="Continue with the options of the checkpoint, or use another folder.",
            )
        self.load_state(tensors)
        for own, one in zip(self._work.sums, self._step.sums, strict=True):
            np.copyto(own, tensors[f"sum {one.name}"])
        self._waiting = position.waiting
        self._position, self.history = position, History(position.history)

    @contextlib.contextmanager
    def _kept_on_error(self, file: Path | None) -> Iterator[None]:
        """Write a checkpoint when the training ends by an error."""
        try:
            yield
        except BaseException:
            if file is not None and self._position.step and self._work.non_finite() is None:
                self._write(file)
            raise
