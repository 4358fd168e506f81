"""The operations of a server without a wire: each protocol calls the same methods."""
