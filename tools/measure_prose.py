"""Measure docstrings, identifiers, error messages and pages against ``docs/contributing/style.md``.

    python tools/measure_prose.py                     # a table, a row for each package of src/sardonyx
    python tools/measure_prose.py --list src/sardonyx/core docs README.md
    python tools/measure_prose.py --all               # also pages, and identifiers outside of src

The exit status is 1 if a limit is exceeded. ``tests/test_style.py`` holds the whole tree to the same limits.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "src" / "sardonyx"

_WORDS = """
asked each found given kept made nobody noted place places somebody such taken those told turned wanted whoever
"""
BANNED = frozenset(_WORDS.split())
"""Identifiers that name an act or nothing, with or without a leading underscore."""

OPENERS = ("What", "Whether", "Where", "How", "Why", "Which", "That", "Those")
PAGE_OPENERS = ("What", "Whether", "Where", "How", "That", "Those")
"""Words with which no sentence of a page begins."""

PRONOUNS = frozenset(("it", "they", "those", "that"))
NEGATED = re.compile(r"\b(?:is|are) (?:no|none)\b|\bthere (?:is|are) none\b", re.IGNORECASE)
"""Forms excluded from messages: "expected X, got Y" and "unknown X" say more than "X is no Y"."""

LONGEST_FIRST_LINE = 100

WHAT_LIMIT, PRONOUN_LIMIT, OPENER_LIMIT = 1.5, 25.0, 0.01
"""Per 1,000 words, per 1,000 words, and of all docstrings."""


@dataclass(frozen=True)
class Finding:
    """One deviation from the style.

    Attributes:
        line: Line number in the file, from 1.
        text: The deviation.
    """

    line: int
    text: str


@dataclass
class Measure:
    """Counts over some files.

    Attributes:
        words: Words of docstrings.
        interrogatives: Occurrences of the interrogative pronoun.
        pronouns: Occurrences of the words in ``PRONOUNS``.
        docstrings: Number of docstrings.
        openers: Docstrings that start with an interrogative or a demonstrative.
        findings: Deviations that are counted one by one.
    """

    words: int = 0
    interrogatives: int = 0
    pronouns: int = 0
    docstrings: int = 0
    openers: int = 0
    findings: list[Finding] = field(default_factory=list)

    def add(self, other: Measure) -> None:
        """Add the counts of another measure, without its findings."""
        self.words += other.words
        self.interrogatives += other.interrogatives
        self.pronouns += other.pronouns
        self.docstrings += other.docstrings
        self.openers += other.openers

    @property
    def what_rate(self) -> float:
        """Rate of the counted interrogative per 1,000 words."""
        return 1000 * self.interrogatives / max(self.words, 1)

    @property
    def pronoun_rate(self) -> float:
        """Occurrences of the counted pronouns per 1,000 words."""
        return 1000 * self.pronouns / max(self.words, 1)

    @property
    def opener_share(self) -> float:
        """Share of docstrings that start with an interrogative or a demonstrative."""
        return self.openers / max(self.docstrings, 1)

    def is_within_limits(self) -> bool:
        """Return True if no rate exceeds its limit."""
        return self.what_rate <= WHAT_LIMIT and self.pronoun_rate <= PRONOUN_LIMIT and self.opener_share <= OPENER_LIMIT


def docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Yield the string statements: docstrings of definitions, and of assignments."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str()) as text):
                yield text


def identifiers(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and name of every binding: variables, parameters, definitions and imports."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                yield node.lineno, name
            case ast.arg(arg=name):
                yield node.lineno, name
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield node.lineno, name
            case ast.alias(asname=str(name)):
                yield node.lineno, name


def messages(tree: ast.Module) -> Iterator[ast.Constant]:
    """Yield the string constants inside ``raise`` statements."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise):
            for part in ast.walk(node):
                match part:
                    case ast.Constant(value=str()):
                        yield part


def measure(path: Path, identifiers_only: bool = False) -> Measure:
    """Measure one file.

    Args:
        path: A Python file.
        identifiers_only: Count banned identifiers alone: tests and benchmarks have no public prose.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    counts = Measure()
    for line, name in identifiers(tree):
        if name.strip("_") in BANNED:
            counts.findings.append(Finding(line, f"identifier {name!r}: name the thing"))
    if identifiers_only:
        return counts
    for text in docstrings(tree):
        assert isinstance(text.value, str)
        words = re.findall(r"[A-Za-z]+", text.value)
        what = sum(word.lower() == "what" for word in words)
        pronouns = sum(word.lower() in PRONOUNS for word in words)
        opener = bool(words) and words[0] in OPENERS
        counts.add(Measure(len(words), what, pronouns, 1, int(opener)))
        first, _, _ = text.value.strip().partition("\n")
        if opener:
            counts.findings.append(Finding(text.lineno, f"docstring starts with {words[0]!r}: {first}"))
        else:
            starts = {sentence.split(" ", 1)[0] for sentence in re.split(r"(?<=[.:?]) +|\n+", text.value) if sentence}
            if begun := sorted(starts & set(OPENERS)):
                counts.findings.append(Finding(text.lineno, f"sentence starts with {begun[0]!r}: {first}"))
        if len(first) > LONGEST_FIRST_LINE:
            counts.findings.append(Finding(text.lineno, f"first line has {len(first)} characters: {first}"))
        if what or pronouns > max(1, len(words) * PRONOUN_LIMIT / 1000):
            counts.findings.append(
                Finding(text.lineno, f"{what} 'what', {pronouns} pronouns in {len(words)} words: {first}")
            )
    for text in messages(tree):
        assert isinstance(text.value, str)
        if NEGATED.search(text.value):
            counts.findings.append(Finding(text.lineno, f"message {text.value!r}: say 'expected X, got Y'"))
    return counts


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each paragraph, list item and table row of a Markdown page.

    Code blocks, headings, comments and the lines of tables between head and rows are left out.
    """
    first, words, is_fenced, is_code, is_comment, after_blank = 0, list[str](), False, False, False, True
    for number, line in enumerate([*text.splitlines(), ""], 1):
        stripped = line.strip()
        if stripped.startswith("```"):
            is_fenced = not is_fenced
        is_comment = is_comment or stripped.startswith("<!--")
        is_code = line.startswith("    ") and (is_code or after_blank) if stripped else is_code
        is_skipped = is_fenced or is_comment or is_code or stripped.startswith(("```", "#"))
        if words and (not stripped or is_skipped or re.match(r"[-*|>]|\d+\.", stripped)):
            yield first, " ".join(words)
            words = []
        if stripped and not is_skipped and stripped.strip("|-: "):
            first = first if words else number
            words.append(stripped)
        is_comment = is_comment and "-->" not in line
        after_blank = not stripped


def measure_page(path: Path) -> list[Finding]:
    """Return the sentences of a Markdown page that begin with an interrogative or a demonstrative.

    A cell of a table, and the text of a list item, begin a sentence. The tables of the style page quote deviations.
    """
    findings = []
    for line, paragraph in paragraphs(path.read_text(encoding="utf-8")):
        if path.name == "style.md" and paragraph.startswith("|"):
            continue
        for sentence in re.split(r"(?<=[.:?!]) +|(?<!\\)\| *", paragraph):
            word = re.match(r"(?:[-*>] |\d+\. )?[*_\[(\"]*([A-Za-z]+) \S", sentence)
            if word is not None and word.group(1) in PAGE_OPENERS:
                findings.append(Finding(line, f"sentence starts with {word.group(1)!r}: {sentence[:80]}"))
    return findings


def is_binding(finding: Finding) -> bool:
    """Return True for a deviation without allowance: an identifier, a message, a docstring's first word."""
    return finding.text.startswith(("identifier", "message", "docstring starts"))


def packages() -> dict[str, list[Path]]:
    """Return the Python files of each package of ``src/sardonyx``, of the compiler by sub-package.

    Modules beside packages are one group.
    """
    groups: dict[str, list[Path]] = {}
    for path in sorted(SOURCES.rglob("*.py")):
        folders = path.relative_to(SOURCES).parts[:-1]
        groups.setdefault("/".join(folders[: 2 if folders[:1] == ("compiler",) else 1]) or "(top)", []).append(path)
    return groups


def pages() -> list[Path]:
    """Return the pages for readers."""
    return [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def others() -> list[Path]:
    """Return the Python files outside the package."""
    return sorted(
        path for folder in ("tests", "benchmarks", "examples", "tools") for path in (ROOT / folder).rglob("*.py")
    )


def main() -> int:
    """Print the table or the list and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", nargs="+", type=Path, metavar="PATH", help="print every deviation in these files")
    parser.add_argument("--all", action="store_true", help="count pages, and banned identifiers outside src")
    options = parser.parse_args()
    if options.list:
        failed = False
        for start in options.list:
            for path in [start] if start.is_file() else sorted(start.rglob("*.py")) + sorted(start.rglob("*.md")):
                inside = path.resolve().is_relative_to(SOURCES)
                findings = measure_page(path) if path.suffix == ".md" else measure(path, not inside).findings
                for finding in sorted(findings, key=lambda one: one.line):
                    failed = True
                    print(f"{path}:{finding.line}: {finding.text}")
        return int(failed)
    total, failed, identifiers_total, messages_total = Measure(), False, 0, 0
    heads = ("docstrings", "words", "what/1k", "pron./1k", "openers", "banned", "messages")
    print(f"{'package':18}" + "".join(f" {head:>10}" for head in heads))
    for name, paths in packages().items():
        counts = Measure()
        for path in paths:
            one = measure(path)
            counts.add(one)
            counts.findings.extend(one.findings)
        banned = sum(finding.text.startswith("identifier") for finding in counts.findings)
        wrong = sum(finding.text.startswith("message") for finding in counts.findings)
        identifiers_total += banned
        messages_total += wrong
        total.add(counts)
        failed |= bool(banned or wrong) or not counts.is_within_limits()
        print(
            f"{name:18} {counts.docstrings:10,} {counts.words:10,} {counts.what_rate:10.1f} "
            f"{counts.pronoun_rate:10.1f} {counts.opener_share:10.1%} {banned:10,} {wrong:10,}"
        )
    print(
        f"{'all':18} {total.docstrings:10,} {total.words:10,} {total.what_rate:10.1f} {total.pronoun_rate:10.1f} "
        f"{total.opener_share:10.1%} {identifiers_total:10,} {messages_total:10,}"
    )
    if options.all:
        rest = sum(len(measure(path, identifiers_only=True).findings) for path in others())
        sentences = sum(len(measure_page(path)) for path in pages())
        failed |= bool(rest or sentences)
        print(f"tests, benchmarks, examples, tools: {rest:,} banned identifiers")
        print(f"pages: {sentences:,} sentences that begin with {', '.join(PAGE_OPENERS)}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
