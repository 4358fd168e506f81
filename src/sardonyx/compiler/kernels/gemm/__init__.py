"""Matrix products: packing, the register-tiled micro-kernel and products of one row."""
