"""Statistics, metrics, the access log and the status page."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("msgspec", reason="msgspec is not installed (extra: serve)")
pytest.importorskip("httptools", reason="httptools is not installed (extra: serve)")

from sardonyx.serve import Server
from sardonyx.serve.observation.access_log import AccessLogWriter
from sardonyx.serve.observation.statistics import Histogram, Statistics
from tests.serve.conftest import Client, tensor
from tests.serve.models import session

X = tensor("x", "FP32", [3, 4], [1] * 12)


@pytest.fixture
def observed() -> Iterator[tuple[Client, io.StringIO]]:
    log = io.StringIO()
    options: dict[str, Any] = {"triton_metrics": True, "access_log": AccessLogWriter(log), "control": "edit"}
    with Server({"net": session("net")}, http="127.0.0.1:0", **options) as server:
        yield Client(server), log


def test_metrics_count_requests_rows_and_runs(observed: tuple[Client, io.StringIO]) -> None:
    pytest.importorskip("prometheus_client", reason="prometheus-client is not installed (extra: serve)")
    client, _ = observed
    for _ in range(2):
        client.infer("net", [X])
    client.infer("net", [tensor("x", "FP32", [1, 3], [1, 2, 3])])
    lines = client.get("/metrics").body.decode().splitlines()
    label = '{model="net",version="1"}'
    for line in (
        f"sardonyx_requests_success_total{label} 2.0", f"sardonyx_inferences_total{label} 6.0",
        f"sardonyx_executions_total{label} 2.0", f"nv_inference_request_success{label} 2.0",
        f"nv_inference_pending_request_count{label} 0.0",
        'nv_inference_request_failure{model="net",reason="BACKEND",version="1"} 0.0',
        f"sardonyx_revision{label} 0.0", "sardonyx_ready 1.0",
        'sardonyx_batch_rows_bucket{le="4",model="net",version="1"} 2.0',
        f"sardonyx_request_seconds_count{label} 2.0",
        *(f"nv_cache_{kind}_duration_per_model{label} 0.0" for kind in ("hit", "miss")),
    ):  # fmt: skip
        assert line in lines, line
    openmetrics = client.get("/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert openmetrics.body.endswith(b"# EOF\n")


def test_statistics_have_the_names_of_the_extension(observed: tuple[Client, io.StringIO]) -> None:
    client, _ = observed
    client.infer("net", [X])
    statistics = client.get("/v2/models/net/stats").json()["model_stats"][0]
    assert (statistics["inference_count"], statistics["execution_count"]) == (3, 1)
    assert statistics["inference_stats"]["success"]["count"] == 1
    assert statistics["batch_stats"][0]["batch_size"] == 3
    assert client.get("/v2/models/none/stats").status == 404


def test_requests_without_an_answer_count_as_failures() -> None:
    statistics = Statistics()
    statistics.fail.add(5)
    statistics.rejected, statistics.cancelled, statistics.expired = 1, 2, 3
    assert statistics.described()["inference_stats"]["fail"] == {"count": 7, "ns": 5}


def test_the_access_log_has_a_line_a_request_without_values(observed: tuple[Client, io.StringIO]) -> None:
    client, log = observed
    client.infer("net", [X])
    client.request("GET", "/v2/models/none?token=secret", headers={"Authorization": "Bearer secret"})
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert [(line["path"], line["status"]) for line in lines] == [
        ("/v2/models/net/infer", 200),
        ("/v2/models/none", 404),
    ]
    assert "secret" not in log.getvalue()


def test_a_histogram_counts_up_to_its_bounds() -> None:
    histogram = Histogram((1.0, 2.0, 4.0))
    for value in (0.5, 1.0, 3.0, 9.0):
        histogram.add(value)
    assert histogram.counts == [2, 0, 1, 1] and histogram.sum == 13.5
    assert [histogram.quantile(share) for share in (0.25, 0.5, 0.75, 1.0)] == [1.0, 1.0, 4.0, 4.0]


def test_the_status_page_shows_models_revisions_and_batches(observed: tuple[Client, io.StringIO]) -> None:
    client, _ = observed
    client.infer("net", [X])
    change = {"verb": "insert_after", "tensor": "y", "op": "Neg", "name": "negative"}
    client.post("/v2/models/net/edit", [change])
    data = client.get("/status/data").json()["models"][0]
    assert (data["name"], data["revision"], data["success"], data["rows"]) == ("net", 1, 1, [[4.0, 1]])
    page = client.get("/status")
    assert (
        page.headers["content-type"].startswith("text/html")
        and "default-src 'none'" in page.headers["content-security-policy"]
    )
    assert b"http://" not in page.body.replace(b"http://www.w3.org/2000/svg", b""), "nothing is loaded from elsewhere"


def test_a_browser_renders_the_status_page(observed: tuple[Client, io.StringIO], tmp_path: Any) -> None:
    client, _ = observed
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no headless browser is installed: chromium")
    client.infer("net", [X])
    words = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}",
             "--virtual-time-budget=3000", "--dump-dom", f"http://{client.address}/status"]  # fmt: skip
    dom = subprocess.run(words, capture_output=True, text=True, timeout=90, check=False).stdout
    assert 'data-model="net"' in dom and '<dd data-fact="answered">1</dd>' in dom
    assert "up for" in dom and "<rect" in dom


def test_spans_have_the_context_of_the_client() -> None:
    package = "opentelemetry.sdk.trace.export.in_memory_span_exporter"
    exporter_module = pytest.importorskip(package, reason="opentelemetry-sdk is not installed (extra: trace)")
    exporter = exporter_module.InMemorySpanExporter()
    with Server({"net": session("net")}, http="127.0.0.1:0", trace_exporter=exporter) as server:
        client = Client(server)
        parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        body = {"inputs": [X], "id": "seven"}
        assert client.request("POST", "/v2/models/net/infer", body, {"traceparent": parent}).status == 200
        client.post("/v2/trace/setting", {"trace_level": ["OFF"]})
        client.infer("net", [X])
    spans = exporter.get_finished_spans()
    assert [span.name for span in spans] == ["infer net"]
    assert f"{spans[0].context.trace_id:032x}" == parent[3:35]
    assert f"{spans[0].parent.span_id:016x}" == parent[36:52]
    assert spans[0].attributes["sardonyx.revision"] == 0 and spans[0].attributes["sardonyx.request_id"] == "seven"
    assert [event.name for event in spans[0].events] == ["run begins", "run ends"]
    assert spans[0].start_time < spans[0].events[0].timestamp <= spans[0].events[1].timestamp <= spans[0].end_time
