"""Convolution and pooling kernels, by layout."""
