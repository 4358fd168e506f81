"""The tour of Core is run: every example gives what the page shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "design" / "core.md"

RUN = """
import doctest, sys
found = doctest.testfile(sys.argv[1], module_relative=False, optionflags=doctest.ELLIPSIS)
print("attempted", found.attempted)
sys.exit(bool(found.failed))
"""


def test_the_tour() -> None:
    # In a process of its own: a value that a model of another test keeps alive has the name that it has there.
    actual = subprocess.run([sys.executable, "-c", RUN, str(PAGE)], capture_output=True, text=True)
    assert actual.returncode == 0, actual.stdout + actual.stderr
    attempted = re.search(r"attempted (\d+)", actual.stdout)
    assert attempted is not None
    assert int(attempted[1]) > 50
