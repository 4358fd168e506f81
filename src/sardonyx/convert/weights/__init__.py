"""Weights of common decoders and encoders with their configuration: safetensors and GGUF."""
