"""Cast, CastLike and Constant: names of types, and the forms of a constant."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.core.ir.types import element_type
from sardonyx.rewrite.opset.constants import tensor_of_constant
from sardonyx.rewrite.opset.site import Site
from sardonyx.rewrite.opset.table import down, up


@up("Cast", version=6)
def type_as_number(site: Site) -> None:
    """Turn the name of the type into its number."""
    site.become(attributes={"to": int(element_type(site.text("to")))})


@down("Cast", version=6)
def type_as_name(site: Site) -> None:
    """Turn the number of the type into its name."""
    site.become(attributes={"to": ir.DataType(site.integer("to")).name})


@down("Cast", version=19)
def without_saturation(site: Site) -> None:
    """Drop saturation, which affects only 8-bit floats, missing in older sets."""
    if site.dtype(site.node.outputs[0]).name.startswith("FLOAT8"):
        site.refuse("its result type, an 8-bit float, does not exist in the target opset")
    site.become(attributes=site.attributes(drop=["saturate"]))


@down("Cast", version=24)
def without_rounding_mode(site: Site) -> None:
    """Drop the rounding mode, which affects only float8e8m0, missing in older sets."""
    site.become(attributes=site.attributes(drop=["round_mode"]))


@down("CastLike", version=15)
def cast_to_known_type(site: Site) -> None:
    """Cast to the known type of the second input."""
    site.replace(site.cast(site.required(0), site.dtype(site.required(1))))


@down("Constant", version=11)
@down("Constant", version=12)
def constant_as_tensor(site: Site) -> None:
    """Turn numbers, lists and strings into a tensor, a sparse tensor into a dense one."""
    if site.has("value"):
        return
    if site.has("sparse_value"):
        if site.target >= 11:
            return
        site.replace(site.emit("Constant", value=_dense(site, site.node.attributes["sparse_value"])))
        return
    tensor = tensor_of_constant(site.node)
    if tensor is None:
        site.refuse("its value is a parameter of the function")
    site.become(attributes={"value": tensor})


def _dense(site: Site, attribute: ir.Attr) -> ir.TensorProtocol:
    sparse = attribute.value
    shape = tuple(sparse.dims)
    site.require_room(*shape)
    content = np.zeros(shape, sparse.values.numpy().dtype)
    indices = sparse.indices.numpy()
    index = np.unravel_index(indices, shape) if indices.ndim == 1 else tuple(indices.T)
    content[index] = sparse.values.numpy()
    return ir.Tensor(content)


@down("Constant", version=9)
def constant_as_initializer(site: Site) -> None:
    """Turn tensors of other types than floats, not supported before set 9, into initializers."""
    tensor = tensor_of_constant(site.node)
    if tensor is None:
        site.refuse("its value is a parameter of the function")
    if tensor.dtype in (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE):
        return
    if not site.scope.in_function and not site.node.outputs[0].is_graph_output():
        site.replace(site.scope.initializer(tensor, str(site.node.outputs[0].name)))
        return
    content = tensor.numpy()
    if content.dtype.kind not in "iub" or not np.array_equal(content.astype(np.float64).astype(content.dtype), content):
        site.refuse("expected a tensor of floating-point numbers")
    exact = site.emit("Constant", value=ir.Tensor(content.astype(np.float64)))
    site.replace(site.cast(exact, tensor.dtype))
