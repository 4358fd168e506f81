"""Export to StableHLO: the text of an MLIR module, written from a model's Core function."""
