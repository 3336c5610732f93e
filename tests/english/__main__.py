"""Check that the English of the product gets plainer, never less plain: `python -m tests.english`.

It prints the figures that rose, with their limits, and ends with exit code 1; `make lint` runs it. `--list FIGURE`
prints each place of a figure; after an edit `--write` lowers the limits to what was found.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Final

from tests.english.measure import FIGURES, measure

LIMITS: Final = Path(__file__).with_name("limits.json")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.english", description=__doc__)
    parser.add_argument("--list", choices=FIGURES, help="print each place of this figure")
    parser.add_argument("--write", action="store_true", help="lower the limits to what was found")
    options = parser.parse_args()
    found = measure()
    if options.list:
        for place in found[options.list]:
            print(f"{place.file}:{place.line}: {' '.join(place.text.split())[:160]}")
        return
    limits: dict[str, int] = json.loads(LIMITS.read_text())
    if options.write:
        lower = {figure: min(len(found[figure]), limits[figure]) for figure in FIGURES}
        LIMITS.write_text(json.dumps(lower, indent=1) + "\n")
    rose = [figure for figure in FIGURES if len(found[figure]) > limits[figure]]
    for figure in rose:
        print(f"{figure}: {len(found[figure])}, at most {limits[figure]}: python -m tests.english --list '{figure}'")
    sys.exit(1 if rose else 0)


if __name__ == "__main__":
    main()
