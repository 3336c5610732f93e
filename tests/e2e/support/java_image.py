"""What the Java image of the ring has on its class path: the client with the ring's programs, and Apache's bookie."""

from __future__ import annotations

import os
from pathlib import Path

from tests.interop.java_programs import PROJECT
from tests.support.java import MavenProject

_BOOKIE = MavenProject(Path(__file__).parents[1] / "java")

if __name__ == "__main__":
    print(os.pathsep.join([PROJECT.class_path(), _BOOKIE.class_path()]))
