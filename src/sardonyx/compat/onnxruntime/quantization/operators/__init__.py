"""Quantization of single operators, by ONNX Runtime's names; ``registry`` names the class of each operator."""
