"""The proof that batching is sound: rows of a merged call equal the rows of calls apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sardonyx.errors import SardonyxError
from sardonyx.runtime.session import Session
from sardonyx.runtime.snapshot import Snapshot
from sardonyx.serve.models.concatenation import Concatenation
from sardonyx.serve.models.interface import Interface

BATCH_SIZES = (2, 3, 5)
"""Numbers of rows of the merged calls of the proof."""

_SIZES = (4, 8, 1, 2, 16, 32, 64)
"""Open inner sizes that are tried: small ones, because a proof needs no typical sizes, and 32 * h may be declared."""

_POOL = 8
"""Open sizes of the draw from which values of concatenated rows are taken."""

_ELEMENTS = 1 << 24
"""Largest drawn input; a model that runs at larger sizes alone is not proved."""

_TOLERANCES = {"FP16": 2e-3, "BF16": 1.6e-2, "FP32": 1e-5, "FP64": 1e-10}
"""Largest difference over the largest magnitude of an output; other types must be equal.

Kernels for other numbers of rows add in another order, so that last bits may differ.
"""

Run = Callable[[Mapping[str, np.ndarray]], list[np.ndarray]]


@dataclass(frozen=True)
class Verdict:
    """The verdict on batching of one revision.

    Attributes:
        is_sound: True if requests may be merged.
        reason: The reason why not; empty if sound.
    """

    is_sound: bool
    reason: str = ""


PENDING = Verdict(False, "the proof of this revision is not finished")
"""The verdict on a revision before its proof has ended."""


def batch_axis_refusal(interface: Interface) -> str:
    """Return the reason why the declared sizes exclude a batch axis; empty if the first axis may be one."""
    if not interface.outputs:
        return "the model has no outputs"
    symbols = set()
    for kind, tensors in (("input", interface.inputs), ("output", interface.outputs)):
        for tensor in tensors.values():
            if tensor.is_optional:
                continue
            if not tensor.shape:
                return f"{kind} {tensor.name} has no axes"
            size = tensor.shape[0]
            if isinstance(size, int):
                return f"the first size of {kind} {tensor.name} is fixed: {size}"
            symbols.add(size)
    if not any(not tensor.is_optional for tensor in interface.inputs.values()):
        return "the model has no inputs"
    if len(symbols - {None}) > 1:
        return f"the first sizes differ: {', '.join(sorted(map(str, symbols - {None})))}"
    return ""


def prove(
    session: Session, snapshot: Snapshot, interface: Interface, concatenation: Concatenation | None = None
) -> Verdict:
    """Decide if requests of a revision may be merged; the verdict on an unedited model is stored for later processes.

    Args:
        session: The session, for the names of open sizes.
        snapshot: The revision.
        interface: Its inputs and outputs, as requests have them.
        concatenation: The inputs that runs get concatenated.
    """
    if refusal := batch_axis_refusal(interface):
        return Verdict(False, refusal)

    def compared() -> tuple[bool, str]:
        verdict = Verdict(True)
        rows = _rows(session, snapshot, interface)
        for kind in ("similar", *_FACTORS):
            counts = BATCH_SIZES if kind == "similar" else BATCH_SIZES[-1:]
            if verdict.is_sound:
                drawn = {name: _drawn_rows(array, kind) for name, array in rows.items()}
                verdict = _compared(lambda feeds: snapshot.run(None, feeds), drawn, counts, interface)
        return verdict.is_sound, verdict.reason

    def concatenated() -> tuple[bool, str]:
        assert concatenation is not None
        verdict = _concatenated(session, snapshot, interface, concatenation)
        return verdict.is_sound, verdict.reason

    try:
        if concatenation is not None:
            return Verdict(*snapshot.remembered(f"batching by {concatenation}", concatenated))
        return Verdict(*snapshot.remembered("batching", compared))
    except SardonyxError as error:
        return Verdict(False, f"the proof failed: {error}"[:300])


def _rows(session: Session, snapshot: Snapshot, interface: Interface) -> dict[str, np.ndarray]:
    """Return random inputs with as many rows as the largest batch of the proof."""
    from sardonyx.runtime.profiling.profile import drawn_feeds

    count = max(BATCH_SIZES)
    required = [tensor for tensor in interface.inputs.values() if not tensor.is_optional]
    symbol = next((t.shape[0] for t in required if t.shape and isinstance(t.shape[0], str)), None)
    failure: SardonyxError | None = None
    names: Mapping[str, int] = {}
    for size in _SIZES:
        try:
            if not names:
                _, names = drawn_feeds(snapshot.model, session, {})
            sizes = {name: count if name == symbol else size for name in names}
            base, _ = drawn_feeds(snapshot.model, session, sizes)
            arrays = {tensor.name: _several(np.asarray(base[tensor.name]), count) for tensor in required}
            snapshot.run(None, {name: array[:1] for name, array in arrays.items()})
            return arrays
        except SardonyxError as error:
            failure = failure or error
    base, _ = drawn_feeds(snapshot.model, session)
    if any(np.asarray(array).size > _ELEMENTS for array in base.values()) and failure is not None:
        raise failure
    return {tensor.name: _several(np.asarray(base[tensor.name]), count) for tensor in required}


def _several(array: np.ndarray, count: int) -> np.ndarray:
    return array[:count] if len(array) >= count else np.repeat(array[:1], count, axis=0)


_FACTORS = {
    "unlike": (1.0, -3.0, 0.03, -0.4, 12.0),
    "outlying": (1.0, 0.0, 1.0, 1e4, -1.0),
    "opposite": (1.0, 0.0, 1.0, -1e4, -1.0),
}
"""Factors of the rows of a draw: other signs and magnitudes, and one row of zeros and one that is far from the rest.

A condition on all rows, such as a comparison of their sum or maximum, is the same for similar rows.
"""


def _drawn_rows(array: np.ndarray, kind: str) -> np.ndarray:
    """Return rows that differ: ``"similar"``, or by the factors of `kind`; rows of integers are exchanged or drawn."""
    rng = np.random.default_rng(0)
    each_row = (len(array), *[1] * (array.ndim - 1))
    if array.dtype.kind in "fV" and array.dtype != object:
        factors = rng.uniform(0.5, 1.5, array.shape)
        if kind != "similar":
            factors = factors * np.reshape(_FACTORS[kind][: len(array)], each_row)
        with np.errstate(over="ignore"):
            return np.asarray((array.astype(np.float64) * factors).astype(array.dtype))
    if kind == "similar" or array.dtype.kind not in "iu" or not array.size:
        return rng.permuted(array.reshape(len(array), -1), axis=1).reshape(array.shape)
    drawn = rng.integers(array.min(), array.max(), array.shape, endpoint=True, dtype=np.int64)
    rows = np.where(
        np.reshape(np.arange(len(array)) % 2 == 0, each_row), drawn, array.min() if kind == "outlying" else array
    )
    return np.asarray(rows.astype(array.dtype))


_LENGTHS = (3, 1, 5, 2)
"""Lengths of the rows of concatenated inputs in the proof."""


def _concatenated(session: Session, snapshot: Snapshot, interface: Interface, concatenation: Concatenation) -> Verdict:
    """Compare a run of concatenated rows of unlike lengths with a run of each row."""
    from sardonyx.runtime.profiling.profile import drawn_feeds

    _, names = drawn_feeds(snapshot.model, session, {})
    pool, _ = drawn_feeds(snapshot.model, session, dict.fromkeys(names, _POOL))
    rng = np.random.default_rng(0)

    def run(rows: Sequence[Mapping[str, np.ndarray]]) -> list[list[np.ndarray]]:
        results = snapshot.run(None, concatenation.merged(rows, interface.computed))
        return concatenation.divided(dict(zip(interface.outputs, results, strict=True)), rows)

    for factors in ((1.0,) * len(_LENGTHS), *_FACTORS.values()):
        rows = []
        for length, factor in zip(_LENGTHS, factors, strict=False):
            row = {}
            for tensor in interface.inputs.values():
                if tensor.is_optional:
                    continue
                values = np.asarray(pool[tensor.name])
                inner = (length, *values.shape[1:]) if tensor.name in concatenation.inputs else values.shape[1:]
                drawn = rng.choice(values.reshape(-1), (1, *inner))
                is_float = drawn.dtype.kind in "fV" and drawn.dtype != object
                with np.errstate(over="ignore"):
                    row[tensor.name] = (drawn.astype(np.float64) * factor).astype(drawn.dtype) if is_float else drawn
            rows.append(row)
        merged, apart = run(rows), [run([row])[0] for row in rows]
        for index, tensor in enumerate(interface.outputs.values()):
            for result, expected in zip(merged, apart, strict=True):
                tolerance = _TOLERANCES.get(tensor.datatype.name, 0.0)
                if result[index].shape != expected[index].shape:
                    return Verdict(False, f"output {tensor.name} of concatenated rows has other sizes than apart")
                if not _equal(result[index], expected[index], tolerance):
                    return Verdict(False, f"output {tensor.name} of concatenated rows differs from rows apart")
    return Verdict(True)


def _compared(run: Run, rows: Mapping[str, np.ndarray], counts: Sequence[int], interface: Interface) -> Verdict:
    def part(begin: int, end: int) -> list[np.ndarray]:
        return run({name: np.ascontiguousarray(array[begin:end]) for name, array in rows.items()})

    apart = [part(index, index + 1) for index in range(max(counts))]
    for count in counts:
        merged = part(0, count)
        for index, tensor in enumerate(interface.outputs.values()):
            result = merged[index]
            where = f"output {tensor.name} of {count} rows"
            if result.ndim == 0 or result.shape[0] != count:
                return Verdict(False, f"{where} has the shape {list(result.shape)}")
            expected = [answer[index] for answer in apart[:count]]
            if any(row.shape != (1, *result.shape[1:]) for row in expected):
                return Verdict(False, f"{where} has other inner sizes than its rows apart")
            if not _equal(result, np.concatenate(expected), _TOLERANCES.get(tensor.datatype.name, 0.0)):
                return Verdict(False, f"{where} differs from its rows computed apart")
    return Verdict(True)


def _equal(merged: np.ndarray, apart: np.ndarray, tolerance: float) -> bool:
    if not tolerance or merged.size == 0:
        return bool(np.array_equal(merged, apart))
    wide, expected = merged.astype(np.float64), apart.astype(np.float64)
    finite = np.isfinite(expected)
    if not np.array_equal(wide[~finite], expected[~finite], equal_nan=True):
        return False
    largest = float(np.abs(expected[finite]).max(initial=0.0))
    return bool(np.all(np.abs(wide[finite] - expected[finite]) <= tolerance * largest))
