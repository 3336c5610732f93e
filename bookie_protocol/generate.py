"""Generates the checked-in modules of all `.proto` files, and their type stubs.

    python -m bookie_protocol.generate

Needs grpcio-tools (development only). A unit test compares the generated files with the checked-in ones.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
MESSAGES: Final = (
    "bookie_protocol/wire/bookkeeper.proto",
    "bookie_protocol/ledger_metadata/metadata_formats.proto",
    "bookie_protocol/metadata_service/etcd/etcd.proto",
    "bookie_protocol/metadata_service/oxia/oxia.proto",
)
SERVICES: Final = (
    "bookie_protocol/ledger_service/ledger_service.proto",
    "bookie_protocol/metadata_service/embedded/embedded_metadata.proto",
)


def generate() -> dict[Path, str]:
    """Path below the repository -> text of every generated file. A proto's path is its name in the descriptor pool, as
    reflection shows it, so that no file of that name elsewhere clashes with it."""
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory() as out:
        options = [f"-I{ROOT}", f"--python_out={out}", f"--pyi_out={out}"]
        for protos, more in ((MESSAGES, []), (SERVICES, [f"--grpc_python_out={out}"])):
            status = protoc.main(["protoc", *options, *more, *protos])
            if status:
                raise RuntimeError(f"protoc failed on {', '.join(protos)} with status {status}")
        return {path.relative_to(out): path.read_text() for path in Path(out).rglob("*_pb2*")}


def main() -> None:
    for path, text in generate().items():
        (ROOT / path).write_text(text)


if __name__ == "__main__":
    main()
