"""What the documents say is so: links lead somewhere, examples run, the two set-up commands are those of CI."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import io
import re
import runpy
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from sardonyx import Session, demo
from sardonyx.cli import VERBS, main
from sardonyx.compiler.pass_runner import recorded_pass_times

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\[[^\]]*\]\(([^)#]+)(?:#[^)]*)?\)")
COMMAND = re.compile(r"^    (sardonyx \w.*?)(?:\s+#.*)?$", re.MULTILINE)
VERBATIM = ("benchmarks.md", "design/index.md", "how-to/convert-files.md", "reference/cli.md")
"""Pages that show commands of other sorts, or of files that other frameworks write.

The examples of ``reference/cli.md`` are those of the verbs, tried below.
"""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_page_is_reached_from_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    listed = {(ROOT / "docs" / target).resolve() for target in LINK.findall(index)}
    assert {page.resolve() for page in PAGES if page.parent.parent == ROOT / "docs"} <= listed


def test_files_of_the_recipes_exist() -> None:
    """A part in angle brackets stands for any name."""
    page = (ROOT / "docs" / "contributing" / "recipes.md").read_text(encoding="utf-8")
    files = re.findall(r"`((?:src|tests|docs|tools)/[^` ]+)`", page)
    assert len(files) >= 12
    for file in files:
        assert any(ROOT.glob(re.sub(r"<\w+>", "*", file))), file


def test_every_benchmark_is_in_the_table() -> None:
    """A program is a benchmark if its first lines state its command; the other programs are child processes of one."""
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(benchmarks/\w+\.py)` \|", page, re.MULTILINE)
    programs = [
        name
        for path in (ROOT / "benchmarks").glob("*.py")
        if f"python {(name := f'benchmarks/{path.name}')}"
        in (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "")
    ]
    assert sorted(listed) == sorted(programs)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the examples speak of: model.onnx, head.onnx, better.onnx, real.npz, train.npz and eval.npz
    (of the digits classifier), check.py (a program that cannot run Sigmoid) and the shipped models."""
    monkeypatch.chdir(tmp_path)
    for name in demo.names():
        shutil.copy(demo.path(name), tmp_path)
    onnx.save(convolution("N"), "model.onnx")
    onnx.save(convolution("N"), "better.onnx")
    onnx.save(parsed("head (float[M, 4, 1, 1] x) => (float[M, 4, 1, 1] z) { z = Relu(x) }"), "head.onnx")
    Path("check.py").write_text(
        "import sys, onnx\nsys.exit(any(n.op_type == 'Sigmoid' for n in onnx.load(sys.argv[1]).graph.node))\n"
    )
    digits = demo.inputs("digits_classifier")["image"]
    with np.load(demo.path("digits_classifier").with_suffix(".npz")) as stored:
        np.savez("eval.npz", image=digits[160:], labels=stored["truth::labels"][160:])
    np.savez("train.npz", image=digits[:32])
    image = np.random.default_rng(0).random((2, 3, 8, 8), np.float32)
    np.savez("real.npz", image=image)
    for name in ("labeled.npz", "test.npz"):
        np.savez(name, image=image, labels=np.array([1, 3]).reshape(2, 1, 1))
    return tmp_path


NEEDED = {
    **dict.fromkeys(("encrypt", "decrypt", "keygen", "watermark"), "cryptography"),
    **dict.fromkeys(("sign", "verify"), "model_signing"),
    "sbom": "cyclonedx",
    **dict.fromkeys(("convert", "whole-life"), "torch"),
    "convert-to": "torch",
}
"""Package that a page or a verb needs, by its name."""


def require_package(name: str) -> None:
    if name in NEEDED:
        pytest.importorskip(NEEDED[name], reason=f"{NEEDED[name]} is not installed")


def parsed(graph: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {graph}')


def convolution(batch: str) -> onnx.ModelProto:
    weights = ", ".join(str(number / 10) for number in range(12))
    return parsed(
        f"backbone (float[{batch}, 3, 8, 8] image) => (float[{batch}, 4, 1, 1] y) <float[4, 3, 1, 1] w = {{{weights}}}>"
        " { [Conv_0] c = Conv(image, w) features = GlobalAveragePool(c) y = Sigmoid(features) }"
    )


@pytest.mark.parametrize(
    "page", [p for p in PAGES if "```python" in p.read_text(encoding="utf-8")], ids=lambda p: p.stem
)
def test_python_in_the_documents_runs(page: Path, folder: Path) -> None:
    require_extras(page)
    require_package(page.stem)
    names: dict[str, object] = {"__name__": "document"}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(block, str(page), "exec"), names)


def require_extras(page: Path) -> None:
    """Skip a page about serving where the packages of the extra are missing."""
    if "sardonyx.serve" in page.read_text(encoding="utf-8"):
        for package in ("msgspec", "httptools"):
            pytest.importorskip(package, reason=f"serving requires the extra serve: {package} is not installed")


def commands(page: Path) -> list[str]:
    if page.relative_to(ROOT).as_posix().removeprefix("docs/") in VERBATIM:
        return []
    return COMMAND.findall(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", [p for p in PAGES if commands(p)], ids=lambda p: p.stem)
def test_commands_in_the_documents_run(page: Path, folder: Path) -> None:
    require_package(page.stem)
    if page.stem == "open-shapes":
        onnx.save(convolution("1"), "model.onnx")
    for line in commands(page):
        if "--shared" in line and shutil.which("cc") is None:
            print(f"not run, there is no cc to link with: {line}")
            continue
        if "--to stablehlo" in line and importlib.util.find_spec("jax") is None:
            print(f"not run, jax, which proves the text, is not installed (extra: jax): {line}")
            continue
        run(line)


EARLIER = {
    "merge": "sardonyx extract model.onnx --outputs features -o backbone.onnx",
    "compare": "sardonyx fp16 model.onnx -o half.onnx",
    "encrypt": "sardonyx keygen -o owner.key",
    "sign": "sardonyx keygen -o author.pem --kind ecdsa",
    "watermark": "sardonyx keygen -o mark.key --kind aes256",
    "verify": "sardonyx keygen -o author.pem --kind ecdsa\nsardonyx sign model.onnx --key author.pem",
    "decrypt": "sardonyx keygen -o owner.key\nsardonyx encrypt model.onnx -o model.onnxe --to owner.key.pub",
}
"""What makes the other files of a verb's example."""


@pytest.mark.parametrize("verb", sorted(set(VERBS) - {"view", "demo", "serve", "call"}))
def test_the_example_of_every_verb_runs(verb: str, folder: Path) -> None:
    if verb == "convert-from":
        torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")
        torch.export.save(torch.export.export(torch.nn.Linear(4, 3), (torch.randn(2, 4),)), "program.pt2")
    require_package(verb)
    for line in EARLIER.get(verb, "").splitlines():
        run(line)
    example = importlib.import_module(f"sardonyx.cli.{verb.replace('-', '_')}").EXAMPLE
    run(example, allowed=(0, 1) if verb == "check" else (0,))


def run(line: str, allowed: tuple[int, ...] = (0,)) -> None:
    """Run a command line in this process, as a shell would."""
    line, _, target = line.partition(" > ")
    written = io.StringIO()
    with contextlib.redirect_stdout(written), pytest.raises(SystemExit) as ended:
        main(shlex.split(line)[1:])
    assert (ended.value.code or 0) in allowed, line
    if target:
        Path(target).write_text(written.getvalue(), encoding="utf-8")


def example(name: str) -> Any:
    """The ``main`` of an example."""
    return runpy.run_path(str(ROOT / "examples" / f"{name}.py"))["main"]


@pytest.mark.parametrize("name", ["own_rule", "half_precision", "cut_and_join"])
def test_examples_run(name: str) -> None:
    assert example(name)() is not None


def test_the_example_that_optimizes() -> None:
    assert example("optimize_model")(demo.path("digits_classifier")).report.verdict.status == "proved"


def test_the_example_that_swaps_heads() -> None:
    """Each thread meets some of the heads, in the order in which they came."""
    order = [10, 4, 20, 7]
    seen = example("swap_heads")()
    assert seen == [classes for classes in order if classes in seen]


def test_the_example_that_grows_outputs() -> None:
    grown = example("debug_output")()
    assert len(grown) > 5 and all(factor > 1 for factor in grown.values())


def test_the_example_that_detects(tmp_path: Path) -> None:
    cv2 = pytest.importorskip("cv2", reason="OpenCV is not installed (extra: examples)")
    assert example("detect_digits")(tmp_path) > 0.95
    photo, drawn = (cv2.imread(str(tmp_path / f"{kind}_7.png")) for kind in ("photo", "found"))
    assert photo.shape == drawn.shape and (photo != drawn).any()


def test_the_example_of_graphs_compiles_nothing_after_the_first_size(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed (extra: test)")
    run = Session.run
    compilations: list[tuple[int, int]] = []
    with recorded_pass_times() as times:

        def count() -> None:
            compilations.append((times.runs.get("lower groups", 0), times.runs.get("compile kernels", 0)))

        def counted_run(*arguments: Any, **options: Any) -> Any:
            count()
            return run(*arguments, **options)

        monkeypatch.setattr(Session, "run", counted_run)
        right = example("graph_network")()
        count()
    assert len(right) == 6 and np.average(right, weights=[300, 40, 1000, 77, 1, 640]) > 0.85
    assert len(compilations) == 7 and len(set(compilations)) == 1 and all(compilations[0])


def test_the_example_of_point_clouds_trains_and_loops() -> None:
    pytest.importorskip("torch", reason="torch is not installed (extra: examples)")
    assert example("point_cloud")() > 0.75


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no cc to compile with")
def test_the_example_in_c_runs(folder: Path) -> None:
    """By the commands at its head, so that they are right."""
    source = ROOT / "examples" / "c_library" / "main.c"
    shutil.copy(source, folder)
    lines = [line.strip(" *") for line in source.read_text(encoding="utf-8").splitlines() if line.startswith(" *   ")]
    messages, expected = (
        demo.inputs("digits_classifier")["image"][:50],
        demo.outputs("digits_classifier")["probabilities"],
    )
    Path("images.txt").write_text(" ".join(f"{number:g}" for number in messages.ravel()), encoding="utf-8")
    run(lines[0])
    compiled, started = lines[1:]
    subprocess.run(shlex.split(f"{compiled} -Wall -Wextra -Werror"), check=True)
    program, _, images = started.partition(" < ")
    numbers = Path(images).read_text(encoding="utf-8")
    ended = subprocess.run([program], input=numbers, capture_output=True, text=True, check=True, env={})
    described, answers = ended.stdout.splitlines()[:2], ended.stdout.splitlines()[2:]
    assert described == ["input image: open 1 8 8", "output probabilities: open 10"]
    digits, probabilities = zip(*(line.split() for line in answers), strict=True)
    np.testing.assert_array_equal([int(item) for item in digits], expected[:50].argmax(1))
    np.testing.assert_allclose([float(item) for item in probabilities], expected[:50].max(1), atol=1e-5)


def test_ci_runs_the_readmes_second_command() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = [line.strip() for line in readme.splitlines() if line.startswith("    pip install")]
    assert len(commands) == 2
    assert commands[0].endswith("sardonyx demo")
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").replace("--quiet ", "")
    for part in commands[1].split(" && "):
        assert part in script
