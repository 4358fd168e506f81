"""Write src/sardonyx/__init__.pyi, which shows the lazily imported public names to type checkers.

python tools/make_api_stub.py
"""

from __future__ import annotations

from pathlib import Path

import sardonyx

STUB_FILE = Path(sardonyx.__file__).with_suffix(".pyi")

HEADER = """# Generated from the table of names in __init__.py by tools/make_api_stub.py.

"""


def stub(names: dict[str, list[str]]) -> str:
    """Return the text of the stub: one re-export per public name."""
    imports = [f"from {module} import {name} as {name}\n" for module in sorted(names) for name in sorted(names[module])]
    return f"{HEADER}{''.join(imports)}\n__version__: str\n"


if __name__ == "__main__":
    STUB_FILE.write_text(stub(sardonyx.PUBLIC_NAMES), encoding="utf-8")
    print(f"{STUB_FILE}: {len(sardonyx.__all__)} names")
