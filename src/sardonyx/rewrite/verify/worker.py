"""The child process of verification: runs models on inputs and says whether their outputs agree.

One JSON object a line on standard input is a request, one a line on standard output the answer.
It is a process of its own so that an engine that crashes or eats memory takes nothing with it.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from typing import Any

from sardonyx.errors import SardonyxError
from sardonyx.rewrite.verify.judging import judge
from sardonyx.rewrite.verify.memory import limit_memory
from sardonyx.rewrite.verify.reference import Reference


def answer_to(request: dict[str, Any], reference: Reference | None) -> tuple[dict[str, Any], Reference | None]:
    """The answer to one request, and the reference to keep."""
    if request["do"] == "reference":
        reference = Reference(
            Path(request["path"]), Path(request["folder"]), request.get("inputs"), request["seed"], limit_memory
        )
        return reference.as_dict(), reference
    assert reference is not None
    return judge(reference, Path(request["path"]), exact=request["exact"]), reference


def peak_bytes() -> int:
    """The most memory that this process had resident."""
    status = Path("/proc/self/status")
    if status.exists():
        # What getrusage tells on Linux counts in the process that this one was forked from.
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM")) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def main() -> None:
    """Answer requests until standard input ends."""
    reference: Reference | None = None
    for line in sys.stdin:
        try:
            answer, reference = answer_to(json.loads(line), reference)
        except SardonyxError as error:
            answer = {"status": "error", "reason": str(error)}
        except MemoryError:
            answer = {"status": "error", "reason": "running it takes more memory than there is"}
        answer["peak_bytes"] = peak_bytes()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
