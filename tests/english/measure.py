"""Find docstrings and messages that cost a reader a second reading.

Figures
- `docstrings`: docstrings of classes and functions that are no sentence: they begin with a relative clause or a
  preposition ("What ...", "Of ...", "Whether ...").
- `attributes`: the same of the texts behind constants and fields.
- `summaries`: docstrings of modules whose first paragraph has more than one line.
- `no noun`: messages that say "is no X" or "is none of X" ("there is no X" is English).
- `matches`: patterns of `match=` in tests that have several words of a message side by side. A test names the type, and
  of the message a name, a number or one key term, so that words can be improved without it.
- `words`: told, whoever, somebody, nobody, anew, and "stands" for "is", in docstrings, comments, messages and pages.

Generated code is left out.
"""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = (
    "podkeeper",
    "bookie_protocol",
    "bookie_client",
    "bookie_pod",
    "operator/bookie_operator",
    "pyspark_bookie",
)
PAGES: Final = ("*.md", "docs/**/*.md", "charts/**/*.md")
FIGURES: Final = ("docstrings", "attributes", "summaries", "no noun", "matches", "words")
NO_SENTENCE: Final = re.compile(
    r"(Of|What|Whether|How|Who|Whoever|Whatever|Where|When|Why|As|Those|These|And|But|By|With|Without|From|Behind|Beside"
    r"|Beyond|Also|Until|Since|So|Only|Than|That|Because|For|In|On|At|To|Most|Least|Longest|More|Some|Nothing|Nobody"
    r"|Everything|Everybody|Each|Both|No|Not)\b"
)
NO_NOUN: Final = re.compile(r"(?<!there )(?<!There )\b(?:is|are|was|were) (?:no|none)\b(?! (?:longer|more)\b)")
WORDS: Final = re.compile(
    r"\b(?:told|whoever|somebody|nobody|anew|stands?(?! (?:for|by|up|still|alone)\b))\b", re.IGNORECASE
)
PROSE: Final = re.compile(r"\b[A-Za-z]{3,}[,:;]? [a-z]{3,}\b|\b[A-Za-z]+[,:;]? [a-z]+[,:;]? [a-z]+\b")
CODE: Final = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
_DEFINITIONS: Final = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Place(NamedTuple):
    """Where something was found."""

    file: str
    line: int
    text: str


def measure() -> dict[str, list[Place]]:
    """Return the places of each figure, in the order of the files."""
    found: dict[str, list[Place]] = {figure: [] for figure in FIGURES}
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            if "_pb2" not in file.name:
                _measure_code(file.relative_to(ROOT).as_posix(), file.read_text(), found)
    for file in sorted((ROOT / "tests").rglob("*.py")):
        if "match=" in (text := file.read_text()):
            found["matches"] += _matches(file.relative_to(ROOT).as_posix(), ast.parse(text))
    for pattern in PAGES:
        for file in sorted(ROOT.glob(pattern)):
            text = CODE.sub(lambda code: re.sub(r"[^\n]", " ", code[0]), file.read_text())
            found["words"] += _words(file.relative_to(ROOT).as_posix(), 1, text)
    return found


def _measure_code(file: str, text: str, found: dict[str, list[Place]]) -> None:
    tree = ast.parse(text)
    texts: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for at, each in enumerate(node.body):
                if (said := _text(each)) is None:
                    continue
                texts.append((each.lineno, said))
                figure = "attributes" if at else "docstrings" if isinstance(node, _DEFINITIONS) else "summaries"
                if _is_bad(figure, said.strip()):
                    found[figure].append(Place(file, each.lineno, said.strip()))
    for line, message in _messages(tree):
        texts.append((line, message))
        if NO_NOUN.search(message):
            found["no noun"].append(Place(file, line, message))
    tokens = tokenize.generate_tokens(StringIO(text).readline)
    texts += [(each.start[0], each.string) for each in tokens if each.type == tokenize.COMMENT]
    for line, said in texts:
        found["words"] += _words(file, line, CODE.sub("", said))


def _is_bad(figure: str, text: str) -> bool:
    if figure == "summaries":
        return "\n" in text.partition("\n\n")[0]
    return NO_SENTENCE.match(text) is not None


def _text(node: ast.stmt) -> str | None:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return node.value.value
    return None


def _messages(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield what a user or an operator may read: f-strings, and arguments that are several words."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, _joined(node)
        elif isinstance(node, ast.Call):
            for each in [*node.args, *(keyword.value for keyword in node.keywords)]:
                if isinstance(each, ast.Constant) and isinstance(each.value, str) and each.value.count(" ") >= 2:
                    yield each.lineno, each.value


def _joined(node: ast.JoinedStr) -> str:
    return "".join(str(each.value) if isinstance(each, ast.Constant) else "{}" for each in node.values)


def _matches(file: str, tree: ast.Module) -> Iterator[Place]:
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "match":
            for each in ast.walk(node.value):
                text = _joined(each) if isinstance(each, ast.JoinedStr) else getattr(each, "value", None)
                if isinstance(text, str) and PROSE.search(text):
                    yield Place(file, node.lineno, text)
                    break


def _words(file: str, line: int, text: str) -> list[Place]:
    lines = text.split("\n")
    return [
        Place(file, line + text.count("\n", 0, found.start()), lines[text.count("\n", 0, found.start())].strip())
        for found in WORDS.finditer(text)
    ]
