"""Search under budgets: the smallest and fastest model that keeps a metric, size, time, memory and energy."""

from sardonyx.compress.search.budget import Budget
from sardonyx.compress.search.compression import Compressed, CompressionReport, compress

__all__ = ["Budget", "Compressed", "CompressionReport", "compress"]
