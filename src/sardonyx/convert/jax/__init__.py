"""Functions of JAX and modules of Flax as ONNX models: each primitive of the jaxpr is one function."""
