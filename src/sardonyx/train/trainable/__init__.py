"""Models whose parameters training may change, and the weights that it writes back."""
