"""Surgery on whole models: cut a part out, join end to end, rename; each gives a new Model that shares tensors."""

from sardonyx.rewrite.surgery.extraction import extract
from sardonyx.rewrite.surgery.merging import merge
from sardonyx.rewrite.surgery.renaming import rename

__all__ = ["extract", "merge", "rename"]
