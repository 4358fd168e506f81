"""Measure Sardonyx's optimizer beside its peers: results, correctness, latency of the results, time, memory, scale.

    SARDONYX_SUITES=… python benchmarks/optimizer.py --json out.json --plot out.png --markdown docs/benchmarks.md

Every tool runs in processes of its own. Peers come with the `bench` extra; one that is missing is a named column.
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
    parser.add_argument("--only", default=",".join(SECTIONS), help=f"sections, from {','.join(SECTIONS)}")
    parser.add_argument(
        "--models", nargs="*", default=[], metavar="PATTERN", help="names, or suite/name; * and ? match"
    )
    parser.add_argument("--json", type=Path, help="write every figure here")
    parser.add_argument("--plot", type=Path, help="write a plot here")
    parser.add_argument("--markdown", type=Path, help="rewrite the marked section of this page")
    parser.add_argument(
        "--work",
        type=Path,
        default=Path(tempfile.gettempdir()) / "sardonyx-benchmarks",
        help="folder for built models and results; peers' results are kept there between calls",
    )
    chosen = parser.parse_args()
    chosen.sections = [section for section in SECTIONS if section in chosen.only.split(",")]
    unknown = set(chosen.only.split(",")) - set(SECTIONS)
    if unknown:
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
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
    found = tables.tables(rows, scalings, chosen.sections)
    report.show(found)
    if chosen.json:
        report.write_json(chosen.json, rows, scalings, facts)
    if chosen.plot:
        report.plot(chosen.plot, rows, scalings, chosen.sections)
    if chosen.markdown:
        report.rewrite_section(chosen.markdown, report.markdown(found, facts))


if __name__ == "__main__":
    main()
