"""Core graphs as ONNX nodes."""
