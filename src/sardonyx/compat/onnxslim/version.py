"""The version of onnxslim whose interface this is."""

__version__ = "0.1.98"
