"""The version of onnxsim whose interface this is."""

version = "0.8.1"
