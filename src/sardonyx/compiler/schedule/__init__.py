"""Fusion of primitives into groups, layout assignment, and the choice of a convolution form."""
