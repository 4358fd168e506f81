"""Models, adapters and state of a trainer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.errors import OptionError, VerificationError
from sardonyx.model import save
from sardonyx.model.load import require_plain
from sardonyx.runtime.session import Session
from sardonyx.train.data.batches import as_declared, require_names
from sardonyx.train.trainable.lora import Adapter
from sardonyx.train.trainable.model_weights import equal_answers, weights_of_file, with_weights
from sardonyx.train.trainer.evaluation import Evaluation


class Results(Evaluation):
    """A training whose results are models."""

    def file_weights(self, *, average: bool = False, copy: bool = True) -> dict[str, np.ndarray]:
        """Return the trained weights by name in the types of the file, for :meth:`Session.update_weights`.

        Args:
            average: If True, they are the running means of the parameters.
            copy: If False, arrays may be those of the trainer, which its next step changes.
        """
        weights = self._weights(average=average)
        if self._quantized is None and self._lora is None:  # Without a copy of the graph.
            return weights_of_file(self._model, weights, copy=copy)
        initializers = self.model(average=average).graph.initializers
        names = weights if self._lora is None else self._adapter(weights).targets()
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
        session = self._current_session(average)
        names = [info.name for info in session.get_outputs()]
        return dict(zip(names, session.run(None, arrays), strict=True))

    def _current_session(self, average: bool) -> Session:
        """Return a session of the inference model with the current weights, which later calls update."""
        current = (self._work.changes, average)
        if self._session is None or (self._quantized is not None and current != self._session_weights):
            self._session = Session(self.model(average=average), compile="wait", threads=self._threads)
        elif current != self._session_weights:
            self._session.update_weights(self.file_weights(average=average))
            self._session.renumber(self._session.revision)  # Forgets the weights before, which would stay in memory.
        self._session_weights = current
        return self._session

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
        return self._adapter(weights).merge(self._source)

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
        return Adapter(self._lora, {name: np.array(array) for name, array in weights.items()})

    def require_plain(self) -> None:
        """Refuse to write the state of a model from an encrypted file: the written file would be plain text.

        Raises:
            EncryptionError: The model was loaded from an encrypted file.
        """
        require_plain(self._source)

    def save(self, path: str | os.PathLike[str], *, average: bool = False) -> float:
        """Write the inference model, after its answers were compared with the trainer's.

        Answers of a quantized model are those of interpreted code if kernels round values near a half otherwise.

        Args:
            path: The file.
            average: If True, the model has the running means of the parameters.

        Returns:
            The largest difference of an output of the loss on the last batch, as a share of the largest element.

        Raises:
            EncryptionError: The model was loaded from an encrypted file; nothing is written.
            ExecutionError: A weight is infinite or NaN; nothing is written.
            VerificationError: The model answers otherwise than the trainer; nothing is written.
            ModelFileError: The file cannot be written.
        """
        self.require_plain()
        self._work.require_finite()
        model, error = self.model(average=average), 0.0
        if self._last_batch is not None:
            feeds, labels = self._last_batch
            inference = self._inference()
            _, _, expected = inference.run(self._weights(average=average), [*feeds.values(), *labels])
            names = self._loss.reads(inference.forward.outputs)
            reference = None
            if self._quantized is not None:
                reference = with_weights(self._model, self._model, self._weights(average=average))
            error, equal = equal_answers(model, feeds, expected, names, self._loss.undone, reference=reference)
            if not equal:
                raise VerificationError(
                    f"the saved model differs from the trainer by {error:.1e} of the largest element.",
                    where=os.fspath(path),
                )
        save(model, path)
        return error
