"""Remembered answers to equal requests, of the current revision alone."""

from __future__ import annotations

import hashlib
from collections import OrderedDict

from sardonyx.serve.protocol.requests import Answer, InferRequest, Output, tensor_bytes
from sardonyx.serve.protocol.strings import write_strings

_ENTRY_BYTES = 512
"""Bytes of the objects of an answer, and of each output."""


class AnswerCache:
    """Answers by the digest of their requests, least recently used first; an edit of the model empties the cache.

    Args:
        capacity: Limit of the bytes of outputs, with the objects that hold them.
    """

    def __init__(self, capacity: int = 64 << 20) -> None:
        self._capacity = capacity
        self._answers: OrderedDict[bytes, tuple[Answer, int]] = OrderedDict()
        self._bytes = 0
        self._revision = -1

    def key(self, request: InferRequest) -> bytes:
        """Return the digest of the values and names that determine the answer."""
        digest = hashlib.blake2b(digest_size=16)
        for name, array in sorted(request.inputs.items()):
            digest.update(f"{len(name)}:{name}{array.dtype}{array.shape}".encode())
            digest.update(write_strings(array) if array.dtype.kind == "O" else array.tobytes())
        for output in request.outputs:
            digest.update(f"{len(output.name)}:{output.name}".encode())
        return digest.digest()

    def get(self, key: bytes, request: InferRequest, revision: int) -> Answer | None:
        """Return the answer to an equal request of the same revision."""
        if revision != self._revision:
            self._clear(revision)
        entry = self._answers.get(key)
        if entry is None:
            return None
        self._answers.move_to_end(key)
        answer = entry[0]
        outputs = [Output(output.name, output.array) for output in answer.outputs]
        for output, requested in zip(outputs, request.outputs, strict=False):
            output.requested = requested
        return Answer(answer.model, answer.version, request.id, outputs, answer.revision)

    def put(self, key: bytes, answer: Answer) -> None:
        """Remember an answer, unless its revision is not the current one."""
        if answer.revision != self._revision or key in self._answers:
            return
        most = self._capacity // 4
        if sum(output.array.nbytes for output in answer.outputs) > most:
            return
        # Results are views of the results of whole batches, which would stay in memory.
        outputs = [Output(output.name, output.array.copy()) for output in answer.outputs]
        size = _ENTRY_BYTES + sum(tensor_bytes(output.array) + _ENTRY_BYTES for output in outputs)
        if size > most:
            return
        self._answers[key] = Answer(answer.model, answer.version, "", outputs, answer.revision), size
        self._bytes += size
        while self._bytes > self._capacity:
            _, (_, freed) = self._answers.popitem(last=False)
            self._bytes -= freed

    def _clear(self, revision: int) -> None:
        self._answers.clear()
        self._bytes = 0
        self._revision = revision
