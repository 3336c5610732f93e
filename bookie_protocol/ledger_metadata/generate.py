"""Regenerate the checked-in protobuf modules: `python -m bookie_protocol.ledger_metadata.generate [root]`.

`generate(source, target)` is also what the test uses that compares the checked-in files with fresh ones.
Needs `grpcio-tools` (development only).
"""

from __future__ import annotations

import os
import subprocess
import sys

MESSAGES = ("bookie_protocol/ledger_metadata/metadata_formats.proto",)
SERVICES = ("bookie_protocol/metadata_service/embedded/embedded_metadata.proto",)


def generate(source: str, target: str) -> list[str]:
    """Write generated modules below `target` from the `.proto` files below `source`; returns their relative
    paths.
    """
    written: list[str] = []
    for proto in MESSAGES + SERVICES:
        options = [f"--python_out={target}", f"--pyi_out={target}"]
        suffixes = ["_pb2.py", "_pb2.pyi"]
        if proto in SERVICES:
            options.append(f"--grpc_python_out={target}")
            suffixes.append("_pb2_grpc.py")
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{source}", *options, proto]
        subprocess.run(command, cwd=source, check=True)
        written += [proto.removesuffix(".proto") + suffix for suffix in suffixes]
    return written


if __name__ == "__main__":
    root = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else ".")
    for path in generate(root, root):
        print(path)
