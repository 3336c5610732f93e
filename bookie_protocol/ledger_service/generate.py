"""Generates `ledger_service_pb2.py`, its type stub and `ledger_service_pb2_grpc.py` from `ledger_service.proto`.

    python -m bookie_protocol.ledger_service.generate

Needs grpcio-tools (development only). A unit test compares the generated files with the checked-in ones.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

PROTO: Final = Path(__file__).with_name("ledger_service.proto")
GENERATED: Final = ("ledger_service_pb2.py", "ledger_service_pb2.pyi", "ledger_service_pb2_grpc.py")


def generate() -> dict[str, str]:
    """File name -> text of every generated file. The proto's path below the repository is its name in the
    descriptor pool, as reflection shows it."""
    from grpc_tools import protoc

    root = PROTO.parents[2]
    name = PROTO.relative_to(root)
    with tempfile.TemporaryDirectory() as out:
        outputs = (f"--python_out={out}", f"--pyi_out={out}", f"--grpc_python_out={out}")
        status = protoc.main(["protoc", f"-I{root}", *outputs, str(name)])
        if status:
            raise RuntimeError(f"protoc failed on {PROTO} with status {status}")
        return {file: (Path(out) / name.parent / file).read_text() for file in GENERATED}


def main() -> None:
    for file, text in generate().items():
        PROTO.with_name(file).write_text(text)


if __name__ == "__main__":
    main()
