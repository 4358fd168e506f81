"""``ai.onnx.ml``: LabelEncoder's tables."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.rewrite.opset.site import Site
from sardonyx.rewrite.opset.table import down, up

_ML = "ai.onnx.ml"


@up("LabelEncoder", version=2, domain=_ML)
def classes_to_keys(site: Site) -> None:
    """Turn the list of classes into keys and values, in the direction of the input's type."""
    classes = site.texts("classes_strings") or []
    numbers = list(range(len(classes)))
    attributes = site.attributes(drop=["classes_strings"])
    if site.dtype(site.required(0)) == ir.DataType.STRING:
        attributes |= {"keys_strings": classes, "values_int64s": numbers}
    else:
        attributes |= {"keys_int64s": numbers, "values_strings": classes}
    site.become(attributes=attributes)


@down("LabelEncoder", version=2, domain=_ML)
def keys_to_classes(site: Site) -> None:
    """Turn keys 0, 1, … and strings into the list of classes."""
    texts = site.texts("keys_strings") or site.texts("values_strings")
    numbers = site.integers("keys_int64s") or site.integers("values_int64s")
    if texts is None or numbers != list(range(len(texts))):
        site.refuse("expected a table of strings numbered from 0")
    attributes = site.attributes(drop=["keys_strings", "values_strings", "keys_int64s", "values_int64s"])
    site.become(attributes=attributes | {"classes_strings": texts})
