"""Models on many machines: thin adapters for Ray, Spark and Dask, and models split into pipeline parts."""

from sardonyx.distributed.dask import map_blocks, map_partitions
from sardonyx.distributed.image import Image
from sardonyx.distributed.predictor import Predictor
from sardonyx.distributed.spark import make_predict_fn
from sardonyx.distributed.split import Pipeline, split

__all__ = ["Image", "Pipeline", "Predictor", "make_predict_fn", "map_blocks", "map_partitions", "split"]
