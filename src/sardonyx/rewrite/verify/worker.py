"""Child process of verification: runs models on inputs and compares their outputs.

Each line of standard input is a request, each line of standard output an answer, both JSON objects.
A separate process contains crashes and memory exhaustion of engines.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import resource
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir

from sardonyx import model as model_io
from sardonyx.errors import SardonyxError
from sardonyx.rewrite import evaluate
from sardonyx.rewrite.analysis import inference
from sardonyx.rewrite.verify.judging import judge
from sardonyx.rewrite.verify.memory import limit_memory
from sardonyx.rewrite.verify.reference import Reference
from sardonyx.rewrite.verify.search import MEMORY_EXCEEDED


class Judge:
    """Handler of requests about one original, or to run a model.

    Args:
        prepare: Called with a model, its shapes inferred, before its first run.
    """

    def __init__(self, prepare: Callable[[ir.Model], None]) -> None:
        self._prepare = prepare
        self._reference: Reference | None = None
        self._prepared: set[Path] = set()

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to one request."""
        try:
            if request["do"] == "reference":
                self._reference = None
                self._prepared.clear()
                reset_peak()
                path, folder = Path(request["path"]), Path(request["folder"])
                self._reference = Reference(
                    path,
                    folder,
                    request.get("inputs"),
                    request["seed"],
                    self._prepare,
                    is_random=request["random"],
                )
                return self._reference.as_dict()
            if request["do"] == "run":
                return self._run(Path(request["path"]), Path(request["inputs"]), Path(request["outputs"]))
            assert self._reference is not None
            return judge(self._reference, Path(request["path"]), exact=request["exact"])
        except SardonyxError as error:
            return {"status": "error", "reason": str(error)}
        except MemoryError:
            return {"status": "error", "reason": MEMORY_EXCEEDED}

    def _run(self, path: Path, inputs: Path, outputs: Path) -> dict[str, Any]:
        if path not in self._prepared:
            model = model_io.load(path)
            inference.infer_shapes(model, strict=False)
            self._prepare(model)
            self._prepared.add(path)
        # Safe to unpickle: the parent wrote the file into its folder. Sequences and maps exclude an array archive.
        answers = evaluate.evaluate(path, pickle.loads(inputs.read_bytes()))
        outputs.write_bytes(pickle.dumps(answers))
        return {}


def reset_peak() -> None:
    """Reset the counter of :func:`peak_bytes` if the system can, else let it cover all models so far."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int:
    """Return the peak resident memory of this process since the request for the current original."""
    status = Path("/proc/self/status")
    if status.exists():
        # On Linux the peak of getrusage includes the process from which this one was forked.
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM")) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def main() -> None:
    """Answer requests until standard input ends."""
    # Engines that print would answer in our place: standard output is discarded for them.
    answers = os.fdopen(os.dup(1), "w")
    with Path(os.devnull).open("w") as discarded:
        os.dup2(discarded.fileno(), 1)
    child = Judge(limit_memory)
    for line in sys.stdin:
        answer = child.answer(json.loads(line))
        answer["peak_bytes"] = peak_bytes()
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
