"""What the documents say is so: links lead somewhere, examples run, the two set-up commands are those of CI."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\[[^\]]*\]\(([^)#]+)(?:#[^)]*)?\)")
RUN = ("tutorial/first-model.md", "how-to/open-shapes.md")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_page_is_reached_from_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    listed = {(ROOT / "docs" / target).resolve() for target in LINK.findall(index)}
    assert {page.resolve() for page in PAGES if page.parent.parent.name == "docs"} <= listed


@pytest.mark.parametrize("page", RUN)
def test_python_in_the_documents_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, page, "exec"), {"__name__": "document"})


@pytest.mark.parametrize("name", ["optimize_model", "own_rule", "half_precision", "cut_and_join"])
def test_examples_run(name: str) -> None:
    module = runpy.run_path(str(ROOT / "examples" / f"{name}.py"))
    main = module["main"]
    if name == "optimize_model":
        from sardonyx import demo

        assert main(demo.path("digits_classifier")).report.verdict.status == "proved"
    else:
        assert main() is not None


def test_ci_runs_the_readmes_second_command() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = [line.strip() for line in readme.splitlines() if line.startswith("    pip install")]
    assert len(commands) == 2
    assert commands[0].endswith("sardonyx demo")
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").replace("--quiet ", "")
    for part in commands[1].split(" && "):
        assert part in script
