"""Writes the pages of `docs/` that are made of code; the custom resources have a generator of their own.

    python -m website.reference            write them
    python -m website.reference --check    exit code 1 if a page is not as it would be written

To be run in a work tree; a test does the same as `--check`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bookie_operator.crds.generate import keep
from bookie_pod.admin.document import http_api_page
from website.pages.apache import apache_page
from website.pages.cli import cli_page
from website.pages.grpc import grpc_page
from website.pages.metrics import metrics_page
from website.pages.spark_options import spark_options_page

ROOT: Final = Path(__file__).resolve().parents[1]
PAGES: Final[dict[str, Callable[[], str]]] = {
    "docs/http-api.md": http_api_page,
    "docs/reference/apache.md": apache_page,
    "docs/reference/cli.md": cli_page,
    "docs/reference/grpc.md": grpc_page,
    "docs/reference/metrics.md": metrics_page,
    "docs/reference/spark-options.md": spark_options_page,
}
"""The function that makes each page, by the page's path below the root of the work tree."""


def main() -> int:
    files = {path: make() for path, make in PAGES.items()}
    return keep(ROOT, files, (), check="--check" in sys.argv[1:], command="make docs")


if __name__ == "__main__":
    sys.exit(main())
