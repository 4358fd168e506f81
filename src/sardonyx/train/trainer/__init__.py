"""`Trainer`: epochs, checkpoints, callbacks and results."""
