"""Metrics in the text formats of Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sardonyx.errors import MissingDependencyError


@dataclass(frozen=True)
class Family:
    """A metric with its values.

    Attributes:
        kind: ``counter``, whose name gets a suffix, ``gauge``, ``histogram``, or ``unknown``, whose name is as it is.
        name: The name.
        text: The description.
        labels: The names of labels.
        values: Values of labels, and a number or a histogram.
    """

    kind: str
    name: str
    text: str
    labels: Sequence[str]
    values: Sequence[tuple[Sequence[str], Any]]


def metrics_text(families: Iterable[Family], accept: str) -> tuple[bytes, str]:
    """Return metrics as text, and the media type.

    Args:
        families: The metrics.
        accept: The formats that the client accepts.

    Raises:
        MissingDependencyError: prometheus-client is not installed.
    """
    try:
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
            UnknownMetricFamily,
        )
        from prometheus_client.exposition import choose_encoder
    except ImportError as error:
        raise MissingDependencyError(
            "metrics require prometheus-client.", remedy='Install it: pip install "sardonyx[serve]".'
        ) from error
    classes = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "unknown": UnknownMetricFamily}

    class Registry:
        """The metrics in the form that the library writes."""

        def collect(self) -> Iterator[Any]:
            """Yield the metrics."""
            for family in families:
                if family.kind == "histogram":
                    metric = HistogramMetricFamily(family.name, family.text, labels=family.labels)
                    for labels, histogram in family.values:
                        metric.add_metric(labels, list(_buckets(histogram)), histogram.sum)
                else:
                    metric = classes[family.kind](family.name, family.text, labels=family.labels)
                    for labels, value in family.values:
                        metric.add_metric(labels, value)
                yield metric

    encode, content_type = choose_encoder(accept)
    text: bytes = encode(Registry())
    return text, content_type


def _buckets(histogram: Any) -> Iterator[tuple[str, int]]:
    total = 0
    for bound, count in zip(histogram.bounds, histogram.counts, strict=False):
        total += count
        yield f"{bound:g}", total
    yield "+Inf", total + histogram.counts[-1]
