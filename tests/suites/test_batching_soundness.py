"""The proof of batching: no model whose rows differ merged and apart is served merged."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import onnx
import pytest

pytest.importorskip("msgspec", reason="msgspec is not installed (extra: serve)")

from sardonyx import Session
from sardonyx.errors import SardonyxError, UnsupportedError
from sardonyx.serve import Model
from sardonyx.serve.models.model import ServedModel
from tests.suites.batching import HOSTILE, differing_output, hostile, public_models, with_open_rows
from tests.suites.node_cases import PARTS, node_cases
from tests.suites.real_models import SUITES, needs_suites

_FOLDERS = {
    "compress": Path(SUITES).parent / "compress",
    "real": Path(SUITES) / "real",
    "train": Path(SUITES).parent / "train" / "models",
}
PUBLIC = public_models(_FOLDERS) if SUITES else {}


def served(model: onnx.ModelProto | Path, compile: str) -> ServedModel:
    limits = {"max_memory": 4 << 30, "timeout": 60.0, "max_loop_iterations": 10**6}
    return ServedModel("m", Model(Session(model, compile=compile, threads=2, **limits)))


@pytest.mark.parametrize("name", HOSTILE)
def test_a_model_that_mixes_rows_is_not_served_merged(name: str) -> None:
    model = hostile(name)
    onnx.checker.check_model(model, full_check=True)
    entry = served(model, "off")
    assert not entry.revision.verdict.is_sound
    assert entry.max_rows == 1


def test_there_are_fifty_models_that_mix_rows() -> None:
    assert len(HOSTILE) >= 50


@needs_suites
@pytest.mark.long
@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_model_that_is_served_merged_has_equal_rows_on_other_inputs(name: str) -> None:
    try:
        entry = served(PUBLIC[name], "wait")
    except UnsupportedError as error:
        assert "expected a tensor" in str(error), "sequences and maps of tables cannot be served"
        return
    if entry.revision.verdict.is_sound:
        assert differing_output(entry.session, 3) == ""
    else:
        assert entry.batching_note().startswith("off: ")


BACKEND = Path(onnx.__file__).parent / "backend" / "test" / "data"


def wrongly_merged(models: Iterable[tuple[str, onnx.ModelProto]]) -> tuple[int, int, list[str]]:
    """Open the first sizes of models; return how many are served, how many merged, and the merged ones that differ."""
    served_models, merged, wrong = 0, 0, []
    for name, model in models:
        opened = with_open_rows(model)
        if opened is None:
            continue
        try:
            entry = served(opened, "off")
        except SardonyxError:
            continue
        served_models += 1
        if entry.revision.verdict.is_sound:
            merged += 1
            if difference := differing_output(entry.session, 3):
                wrong.append(f"{name}: {difference}")
    return served_models, merged, wrong


def test_backend_models_that_are_served_merged_have_equal_rows() -> None:
    paths = [
        path for kind in ("pytorch-converted", "pytorch-operator", "simple") for path in (BACKEND / kind).iterdir()
    ]
    models = ((path.name, onnx.load(path / "model.onnx")) for path in sorted(paths))
    count, merged, wrong = wrongly_merged(models)
    assert not wrong
    assert count > 130 and merged > 110, "the proof refuses models that it proved before"


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_operators_that_are_served_merged_have_equal_rows(part: int) -> None:
    count, merged, wrong = wrongly_merged((case.name, case.model) for case in node_cases()[part::PARTS])
    assert not wrong
    assert count > 150 and merged > 80


def test_open_sizes_that_are_multiples_are_proved_at_small_sizes() -> None:
    text = (
        '<ir_version: 9, opset_import: ["": 18]> net (float[N, 1, H] x) => (float[N, 1, K] y)'
        " <float[1, 1, 3] w = {1, 2, 3}> { y = Conv(x, w) }"
    )
    model = onnx.parser.parse_model(text)
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "4096*h"
    entry = served(model, "off")
    assert entry.revision.verdict.is_sound, entry.batching_note()
