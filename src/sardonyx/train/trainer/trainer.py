"""Training of a model file."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from sardonyx.base.option_checks import require_count
from sardonyx.base.signals import interrupted_after
from sardonyx.errors import ExecutionError, FeedError, OptionError
from sardonyx.train.data.batches import Batches, Data
from sardonyx.train.schedules import Plateau
from sardonyx.train.step.forward import LOSS
from sardonyx.train.trainer.callbacks import Callback, Moment, checked_callbacks, require_metric, require_watched
from sardonyx.train.trainer.checkpoints import checkpoint_file, read_checkpoint, write_checkpoint
from sardonyx.train.trainer.evaluation import name_samples
from sardonyx.train.trainer.history import History
from sardonyx.train.trainer.progress import progress_line
from sardonyx.train.trainer.results import Results


class Trainer(Results):
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
        sparse: Embeddings of which a step updates the rows that its batch reads: ``"embeddings"``, or patterns of
            names. A table must be read by ``Gather`` alone, along axis 0. Steps of SGD without momentum and of Adagrad
            are those over all rows; Adam is lazy: means of rows that no batch reads stay, as in
            ``torch.optim.SparseAdam``. Weight decay must be 0.
        privacy: Clipping of the gradients of samples, and noise; see :meth:`Privacy.epsilon` for the guarantee.
        reduce: For training by several processes: a function that replaces each array of a list by its mean over the
            processes, in place, equal to the bit in all. Each process trains on a part of each batch, of equal size.
        precision: ``"bf16"`` rounds the operands and results of products to bfloat16, forward and backward; parameters,
            optimizer, losses, norms and convolutions stay float32.
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
            EncryptionError: The model was loaded from an encrypted file, and ``checkpoint`` names a folder.
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
        batches = Batches(
            data, self.batch_types, batch_size=batch_size, shuffle=shuffle, seed=self._seed, remedies=self._remedies,
            classes=self._classes,
        )  # fmt: skip
        if batches.is_endless and steps is None:
            raise OptionError("the dataset has no end.", where="data", remedy="Give `steps=`, the batches of an epoch.")
        self._require_samples(batches)
        evaluated = None
        if validation is not None:
            evaluated = self._evaluation_batches(validation, batch_size, "validation")
            self._require_samples(evaluated)
            self._require_finite_loss(evaluated)
        functions, rate = checked_callbacks(callbacks), self.base_optimizer.rate
        require_watched(functions, rate, self._measured(validation is not None))
        file = None if checkpoint is None else self._file_to_write(checkpoint)
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
                if evaluated is not None:
                    row |= {f"validation_{name}": value for name, value in self._evaluated(evaluated).items()}
                self.history.add(row)
                done = self._position.epoch + 1
                self._position = replace(self._position, epoch=done, batch=0, loss_total=0.0)
                moment = Moment(done, self._position.step, row, self, self.history.rows[:-1], done == epochs)
                stop = [callback(moment) for callback in functions]
                if isinstance(rate, Plateau):
                    require_metric(rate.metric, self.history)
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
                try:
                    loss = self._train(batch, total)
                except ExecutionError as error:
                    name_samples(error, batch, batches.sample_names(self._position.epoch, self._position.batch))
                    raise
                position = self._position
                self._position = replace(position, batch=position.batch + 1, loss_total=position.loss_total + loss)
            shown(self._position.epoch, loss)
            if file is not None and every and self._position.step > before and self._position.step % every == 0:
                self._write(file)
        if self._waiting:
            self._apply_sums(total, None)
        if not self._position.batch:
            raise OptionError("expected at least one batch.", where="data")

    def _require_samples(self, batches: Batches) -> None:
        """Check whole arrays before the first step: their types, and the values of all labels."""
        names = [name for name in self._forward.labels if name in self.batch_types]
        if len(names) == len(self._forward.labels) and (labels := batches.whole_arrays(names)):
            try:
                self._check_values(labels)
            except FeedError as error:
                error.reword(error.problem, where=f"{batches.where}, {error.where}", remedy=error.remedy)
                raise

    def _measured(self, is_evaluated: bool) -> list[str]:
        """Return the names of the numbers of a row."""
        evaluated = (LOSS, *(metric.name for metric in self._metrics)) if is_evaluated else ()
        return ["epoch", LOSS, "rate", "seconds", *(f"validation_{name}" for name in evaluated)]

    def _row(self, began: float, total: int | None) -> dict[str, float]:
        position = self._position
        return {
            "epoch": float(position.epoch + 1),
            LOSS: position.loss_total / position.batch,
            "rate": self._rate(total),
            "seconds": time.perf_counter() - began,
        }

    # Checkpoints.

    @property
    def form(self) -> str:
        """The names and types of the state, which a checkpoint must have."""
        return ";".join(f"{one.name}{one.type}" for one in self._step.state)

    def save_checkpoint(self, folder: str | os.PathLike[str]) -> None:
        """Write the state and the position in the data; :meth:`fit` goes on from there with ``resume``.

        Args:
            folder: The folder of the checkpoint, which is made if missing.

        Raises:
            EncryptionError: The model was loaded from an encrypted file; nothing is written.
            ExecutionError: The state is not finite.
            ModelFileError: The file cannot be written.
        """
        self._write(self._file_to_write(folder))

    def load_checkpoint(self, folder: str | os.PathLike[str]) -> None:
        """Continue at the state and the position of a checkpoint.

        Raises:
            OptionError: The checkpoint is of another training.
            ModelFileError: The checkpoint is missing or damaged.
        """
        self._restore(checkpoint_file(folder, make=False))

    def _file_to_write(self, folder: str | os.PathLike[str]) -> Path:
        self.require_plain()
        return checkpoint_file(folder)

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
