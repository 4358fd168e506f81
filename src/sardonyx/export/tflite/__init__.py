"""Models as TensorFlow Lite files, without TensorFlow; see :mod:`.exporter`."""
