"""Measure Sardonyx's optimizer next to its peers: results, correctness, latency, time, memory, scale.

    SARDONYX_SUITES=… python benchmarks/optimizer.py --json out.json --plot out.png --markdown docs/benchmarks.md

Every tool runs in processes of its own. The `bench` extra installs the peers; a missing peer is a named column.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import rich.progress

import measure
import report
import scale
import suites
import tables

SECTIONS = ("nodes", "latency", "time", "memory", "scale")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(SECTIONS), help=f"some of {','.join(SECTIONS)}")
    parser.add_argument(
        "--models", nargs="*", default=[], metavar="PATTERN", help="names, or suite/name; * and ? match"
    )
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument("--plot", type=Path, help="file for a plot")
    parser.add_argument("--markdown", type=Path, help="page whose marked section is rewritten")
    parser.add_argument(
        "--work",
        type=Path,
        default=Path(tempfile.gettempdir()) / "sardonyx-benchmarks",
        help="folder for models and results; later runs reuse the peers' results",
    )
    chosen = parser.parse_args()
    chosen.sections = [section for section in SECTIONS if section in chosen.only.split(",")]
    unknown = set(chosen.only.split(",")) - set(SECTIONS)
    if unknown:
        parser.error(f"unknown section {', '.join(sorted(unknown))}; expected some of {', '.join(SECTIONS)}")
    return chosen


def main() -> None:
    chosen = arguments()
    rows: list[measure.Row] = []
    scalings: list[scale.Scaling] = []
    facts = report.surroundings()
    if chosen.sections != ["scale"]:
        try:
            cases = suites.cases(chosen.work / "models", chosen.models)
        except suites.MaterialMissing as reason:
            sys.exit(str(reason))
        with measure.Bench(chosen.work) as bench:
            for case in rich.progress.track(cases, "models", console=rich.console.Console(stderr=True)):
                rows.append(bench.row(case, chosen.sections))
                if chosen.json:
                    report.write_json(chosen.json, rows, scalings, facts)
    if "scale" in chosen.sections:
        scalings += scale.measure(chosen.work / "scale")
    results = tables.tables(rows, scalings, chosen.sections)
    report.show(results)
    if chosen.json:
        report.write_json(chosen.json, rows, scalings, facts)
    if chosen.plot:
        report.plot(chosen.plot, rows, scalings, chosen.sections)
    if chosen.markdown:
        report.rewrite_section(chosen.markdown, report.markdown(results, facts))


if __name__ == "__main__":
    main()
