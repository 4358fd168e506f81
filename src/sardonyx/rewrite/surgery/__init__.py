"""Surgery on whole models: extract, merge, rename; each returns a new Model that shares tensors."""

from sardonyx.rewrite.surgery.extraction import extract
from sardonyx.rewrite.surgery.merging import merge
from sardonyx.rewrite.surgery.renaming import rename

__all__ = ["extract", "merge", "rename"]
