"""The child process of verification: runs models on inputs and says whether their outputs agree.

One JSON object a line on standard input is a request, one a line on standard output the answer.
It is a process of its own so that an engine that crashes or eats memory takes nothing with it.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import resource
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir

from sardonyx import model as model_io
from sardonyx.errors import SardonyxError
from sardonyx.rewrite import evaluate, inference
from sardonyx.rewrite.verify.judging import judge
from sardonyx.rewrite.verify.memory import limit_memory
from sardonyx.rewrite.verify.reference import Reference


class Judge:
    """Answers requests about one original, or to run a model and no more.

    Args:
        prepare: Called with a model, its shapes inferred, before it is run.
    """

    def __init__(self, prepare: Callable[[ir.Model], None]) -> None:
        self._prepare = prepare
        self._reference: Reference | None = None
        self._prepared: set[Path] = set()

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to one request."""
        try:
            if request["do"] == "reference":
                self._reference = None
                self._prepared.clear()
                forget_peak()
                place, folder = Path(request["path"]), Path(request["folder"])
                self._reference = Reference(place, folder, request.get("inputs"), request["seed"], self._prepare)
                return self._reference.as_dict()
            if request["do"] == "run":
                return self._run(Path(request["path"]), Path(request["inputs"]), Path(request["outputs"]))
            assert self._reference is not None
            return judge(self._reference, Path(request["path"]), exact=request["exact"])
        except SardonyxError as error:
            return {"status": "error", "reason": str(error)}
        except MemoryError:
            return {"status": "error", "reason": "running it takes more memory than there is"}

    def _run(self, path: Path, given: Path, found: Path) -> dict[str, Any]:
        if path not in self._prepared:
            model = model_io.load(path)
            inference.infer_shapes(model, strict=False)
            self._prepare(model)
            self._prepared.add(path)
        # The parent wrote this file into a folder of its own; it holds what no archive of arrays can.
        answers = evaluate.evaluate(path, pickle.loads(given.read_bytes()))
        found.write_bytes(pickle.dumps(answers))
        return {}


def forget_peak() -> None:
    """Begin to count anew what :func:`peak_bytes` tells, where the system can; elsewhere it is of all models so far."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int:
    """The most memory that this process had resident since it was asked about another original."""
    status = Path("/proc/self/status")
    if status.exists():
        # What getrusage tells on Linux counts in the process that this one was forked from.
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM")) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def main() -> None:
    """Answer requests until standard input ends."""
    child = Judge(limit_memory)
    for line in sys.stdin:
        answer = child.answer(json.loads(line))
        answer["peak_bytes"] = peak_bytes()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
