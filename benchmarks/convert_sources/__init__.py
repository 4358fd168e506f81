"""Sources for ``benchmarks/convert.py``: one module a group, each with ``cases() -> dict[str, Case]``."""
