"""Recovery after a lossy change: least squares per layer, and fine-tuning on the answers of the original."""

from sardonyx.compress.recovery.distillation import distill
from sardonyx.compress.recovery.reconstruction import reconstruct

__all__ = ["distill", "reconstruct"]
