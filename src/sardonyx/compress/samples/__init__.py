"""Samples of callers: arrays by input name, archives, folders of images and audio, and samples held back to judge."""

from sardonyx.compress.samples.missing_values import not_a_number, require_finite, require_numbers
from sardonyx.compress.samples.numbering import number_of
from sardonyx.compress.samples.preprocessing import Preprocess
from sardonyx.compress.samples.reading import Data, Feeds, items_of, read_samples
from sardonyx.compress.samples.splitting import MOST_JUDGED, Split, split_samples

__all__ = [
    "MOST_JUDGED",
    "Data",
    "Feeds",
    "Preprocess",
    "Split",
    "items_of",
    "not_a_number",
    "number_of",
    "read_samples",
    "require_finite",
    "require_numbers",
    "split_samples",
]
