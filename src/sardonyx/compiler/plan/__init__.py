"""The tape of launches, its segments, and the constants that kernels read."""
