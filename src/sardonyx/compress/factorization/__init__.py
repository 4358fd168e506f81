"""Low-rank factorization: a layer becomes two with fewer weights in all."""

from sardonyx.compress.factorization.factorize import FactorizationReport, Factorized, factorize

__all__ = ["FactorizationReport", "Factorized", "factorize"]
