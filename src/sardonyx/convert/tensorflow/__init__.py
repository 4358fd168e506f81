"""SavedModels, through an installed TensorFlow and tf2onnx in a process of their own."""
