"""Write every generated file: the index of operators and the reference pages.

python tools/generate.py
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs" / "reference"

WRITERS: tuple[tuple[str, ...], ...] = (
    ("tools/make_operator_index.py",),
    ("tools/make_attribute_table.py",),
    ("tools/make_signature_table.py",),
    ("-m", "tests.compat.reference_pages"),
)
"""Programs that write their files themselves, as arguments of the interpreter."""

PRINTERS = {"cli.md": "sardonyx.cli.reference", "check.md": "sardonyx.model.check.reference"}
"""Pages of ``docs/reference`` and the module that prints each."""


def main() -> None:
    """Run every writer, then write each page that a module prints."""
    for arguments in WRITERS:
        subprocess.run([sys.executable, *arguments], cwd=ROOT, check=True)
    for page, module in PRINTERS.items():
        printed = subprocess.run([sys.executable, "-m", module], cwd=ROOT, check=True, stdout=subprocess.PIPE)
        (REFERENCE / page).write_bytes(printed.stdout)


if __name__ == "__main__":
    main()
