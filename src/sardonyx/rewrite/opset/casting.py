"""Cast, CastLike and Constant: what names a type, and the forms a constant may be written in."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite.opset.constants import tensor_of_constant
from sardonyx.rewrite.opset.site import Site
from sardonyx.rewrite.opset.table import down, up


@up("Cast", version=6)
def type_as_number(site: Site) -> None:
    """The type, a name, becomes its number."""
    site.become(attributes={"to": int(ir.DataType[site.text("to").upper()])})


@down("Cast", version=6)
def type_as_name(site: Site) -> None:
    """The type becomes its name."""
    site.become(attributes={"to": ir.DataType(site.integer("to")).name})


@down("Cast", version=19)
def without_saturation(site: Site) -> None:
    """Saturation concerns 8-bit floats alone, which older sets do not have."""
    if site.dtype(site.node.outputs[0]).name.startswith("FLOAT8"):
        site.refuse("it makes 8-bit floats")
    site.become(attributes=site.attributes(drop=["saturate"]))


@down("Cast", version=24)
def without_rounding_mode(site: Site) -> None:
    """The rounding mode concerns float8e8m0 alone, which older sets do not have."""
    site.become(attributes=site.attributes(drop=["round_mode"]))


@down("CastLike", version=15)
def cast_to_known_type(site: Site) -> None:
    """A cast to the type that the second input is known to have."""
    site.replace(site.cast(site.required(0), site.dtype(site.required(1))))


@down("Constant", version=11)
@down("Constant", version=12)
def constant_as_tensor(site: Site) -> None:
    """Numbers, lists and texts become a tensor; a sparse tensor becomes a dense one."""
    if site.has("value"):
        return
    if site.has("sparse_value"):
        if site.target >= 11:
            return
        site.replace(site.emit("Constant", value=_dense(site.node.attributes["sparse_value"])))
        return
    tensor = tensor_of_constant(site.node)
    if tensor is None:
        site.refuse("its value is a parameter of the function")
    site.become(attributes={"value": tensor})


def _dense(attribute: ir.Attr) -> ir.TensorProtocol:
    sparse = attribute.value
    shape = tuple(sparse.dims)
    content = np.zeros(shape, sparse.values.numpy().dtype)
    places = sparse.indices.numpy()
    index = np.unravel_index(places, shape) if places.ndim == 1 else tuple(places.T)
    content[index] = sparse.values.numpy()
    return ir.Tensor(content)


@down("Constant", version=9)
def constant_as_initializer(site: Site) -> None:
    """Before set 9 the node made floating-point tensors only; other tensors become initializers."""
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
        site.refuse("its tensor is not one of floating-point numbers")
    exact = site.emit("Constant", value=ir.Tensor(content.astype(np.float64)))
    site.replace(site.cast(exact, tensor.dtype))
