"""ONNX files of operator sets 1 to 8 and IR version 3, lifted to a present operator set."""
