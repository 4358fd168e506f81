"""Optionals and sequences, which older sets know less of."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite.opset.site import Site
from sardonyx.rewrite.opset.table import down


@down("OptionalGetElement", version=18)
def element_of_no_optional(site: Site) -> None:
    """The element of a tensor or sequence is itself."""
    x = site.required(0)
    if x.type is None:
        site.refuse(f"the type of {x.name!r} is not known")
    if not isinstance(x.type, ir.OptionalType):
        site.replace(x)


@down("OptionalHasElement", version=18)
def presence_of_no_optional(site: Site) -> None:
    """A tensor or sequence is present, a missing input is not."""
    x = site.input(0)
    if x is not None and x.type is None:
        site.refuse(f"the type of {x.name!r} is not known")
    if x is None or not isinstance(x.type, ir.OptionalType):
        site.replace(site.constant(np.asarray(x is not None)))
