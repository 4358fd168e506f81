"""Optimize a model with proof, and print the changes.

    python examples/optimize_model.py [MODEL.onnx]

Without an argument, the model is the digit detector of the package.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import sardonyx
from sardonyx import demo


def main(path: Path) -> sardonyx.Optimized:
    result = sardonyx.optimize(path)
    report = result.report
    print(f"{report.before.nodes} nodes became {report.after.nodes}: {report.verdict.status}")
    for name, times in report.by_pass().items():
        print(f"  {name} fired {times} times")
    with tempfile.TemporaryDirectory() as folder:
        better = Path(folder) / "better.onnx"
        result.save(better)
        print(f"{path.stat().st_size:,} bytes became {better.stat().st_size:,}")
    return result


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else demo.path("digits_detector"))
