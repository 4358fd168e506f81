"""Optionals and sequences, of which older sets support fewer forms."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite.opset.site import Site
from sardonyx.rewrite.opset.table import down


@down("OptionalGetElement", version=18)
def element_of_no_optional(site: Site) -> None:
    """Replace the element of a tensor or sequence by the value itself."""
    x = site.required(0)
    if x.type is None:
        site.refuse(f"the type of {x.name!r} is not known")
    if not isinstance(x.type, ir.OptionalType):
        site.replace(x)


@down("OptionalHasElement", version=18)
def presence_of_no_optional(site: Site) -> None:
    """Replace the presence test of a tensor, sequence or missing input by a constant."""
    x = site.input(0)
    if x is not None and x.type is None:
        site.refuse(f"the type of {x.name!r} is not known")
    if x is None or not isinstance(x.type, ir.OptionalType):
        site.replace(site.constant(np.asarray(x is not None)))
