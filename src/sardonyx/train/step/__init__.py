"""The forward pass, its gradients and the update, as compiled programs over one state."""
