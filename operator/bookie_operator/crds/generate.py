"""Write the files that are made of the typed sources.

These are the definitions in `crds/`, and the pages `docs/bookiecluster.md` and `docs/bookiejob.md`.

    python -m bookie_operator.crds.generate            write them
    python -m bookie_operator.crds.generate --check    exit code 1 if a file is not as it would be written

To be run in a work tree; a test does the same as `--check`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from bookie_operator.crds.definitions import KINDS, definition
from bookie_operator.crds.reference import job_page, reference_page

ROOT: Final = Path(__file__).parents[3]
_HEADER: Final = "# Generated: edit operator/bookie_operator/crds/ and run `python -m bookie_operator.crds.generate`.\n"


class _Plain(yaml.SafeDumper):
    """A dumper without anchors, which Helm and readers do not want; it indents list items, as most manifests do."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def generated() -> dict[str, str]:
    """Content by path below the root of the work tree."""
    files = {
        f"crds/{kind.crd_name}.yaml": _HEADER
        + yaml.dump(definition(kind), Dumper=_Plain, sort_keys=False, width=120, allow_unicode=True)
        for kind in KINDS
    }
    files["docs/bookiecluster.md"] = reference_page()
    files["docs/bookiejob.md"] = job_page()
    return files


def keep(root: Path, files: Mapping[str, str], surplus: Iterable[str], *, check: bool, command: str) -> int:
    """Write what differs of `files` (content by path below `root`) and remove `surplus`; the exit code.

    `check`: change nothing, and name every file with `command` as the remedy; 1 if there is one.
    """
    stale = [path for path, content in files.items() if _present(root / path) != content]
    surplus = list(surplus)
    if check:
        for path in (*stale, *surplus):
            print(f"{path} is not as it is generated: run `{command}`", file=sys.stderr)
        return 1 if stale or surplus else 0
    for path in surplus:
        (root / path).unlink()
    for path in stale:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(files[path], encoding="utf-8")
        print(f"written: {path}")
    return 0


def _present(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def main(arguments: Sequence[str]) -> int:
    command = "python -m bookie_operator.crds.generate"
    return keep(ROOT, generated(), (), check="--check" in arguments, command=command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
