"""Writes src/sardonyx/ops/definitions/index.py: which module defines an operator.

python tools/make_operator_index.py
"""

from __future__ import annotations

import textwrap
from collections import defaultdict
from pathlib import Path

from sardonyx.ops import definitions, registry

PLACE = Path(definitions.__path__[0]) / "index.py"

HEADER = '''"""Which modules define an operator, so that no others are imported for it.

Made by tools/make_operator_index.py.
"""

from __future__ import annotations

from collections.abc import Mapping

_FAMILIES: dict[str, dict[str, str]] = {
'''

FOOTER = '''}


def _by_operator(families: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """For each operator of a domain, the modules that define it."""
    found: dict[str, tuple[str, ...]] = {}
    for module, names in families.items():
        for name in names.split():
            found[name] = (*found.get(name, ()), f"sardonyx.ops.definitions.{module}")
    return found


INDEX = {domain: _by_operator(families) for domain, families in _FAMILIES.items()}
"""By domain and name of an operator: the modules that define it."""
'''


def text() -> str:
    """The file, by what is registered."""
    registry.load()
    families: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for each in registry.all_operators():
        if not each.user:
            families[each.domain][each.module.removeprefix("sardonyx.ops.definitions.")].add(each.name)
    lines = [HEADER]
    for domain in sorted(families):
        lines.append(f'    "{domain}": {{\n')
        for module, names in sorted(families[domain].items()):
            parts = textwrap.wrap(" ".join(sorted(names)), 100)
            if len(parts) == 1 and len(module) + len(parts[0]) < 100:
                lines.append(f'        "{module}": "{parts[0]}",\n')
            else:
                lines.append(f'        "{module}": (\n')
                lines += [f'            "{part} "\n' for part in parts[:-1]] + [f'            "{parts[-1]}"\n']
                lines.append("        ),\n")
        lines.append("    },\n")
    return "".join([*lines, FOOTER])


if __name__ == "__main__":
    PLACE.write_text(text())
