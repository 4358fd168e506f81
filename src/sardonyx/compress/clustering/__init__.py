"""Shared weights: a palette of values and narrow indices in place of a weight."""

from sardonyx.compress.clustering.cluster import Clustered, ClusteringReport, cluster

__all__ = ["Clustered", "ClusteringReport", "cluster"]
