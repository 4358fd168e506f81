"""Compiled models: preparation of a model, the program cache, compiled files and specializations."""
