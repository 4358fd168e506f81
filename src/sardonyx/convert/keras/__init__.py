"""Models of Keras 3: live ones of any backend, and files (``.keras``, ``.h5``)."""
