"""Program runner in which ``import onnxruntime`` loads Sardonyx.

Usage: ``python -m sardonyx.compat.onnxruntime program.py …``.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from sardonyx.compat import install


def main() -> None:
    """Run the program on the command line, or the module after ``-m``."""
    arguments = sys.argv[1:]
    if not arguments or arguments == ["-m"]:
        sys.exit("usage: python -m sardonyx.compat.onnxruntime (program.py | -m module) [argument …]")
    install("onnxruntime")
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = arguments
    sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main()
