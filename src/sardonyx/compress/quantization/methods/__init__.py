"""Methods that make integers more accurate: rescaled channels, and rounding by more than the nearest integer."""
