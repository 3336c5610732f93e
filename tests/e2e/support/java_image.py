"""What the Java image of the ring has on its class paths, each with one version of everything: `client`, that of the
interop ring with its programs, and `bookie`, Apache's bookie of the release that Pulsar has."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.interop.java_programs import PROJECT
from tests.support.java import MavenProject

_PARTS = {"client": PROJECT, "bookie": MavenProject(Path(__file__).parents[1] / "java")}

if __name__ == "__main__":
    print(_PARTS[sys.argv[1]].class_path())
