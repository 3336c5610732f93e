"""The programs that make the image small, as modules."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

_DOCKER = Path(__file__).parents[2] / "docker"


def load(name: str) -> ModuleType:
    """`docker/<name>.py`, which is in no package."""
    spec = importlib.util.spec_from_file_location(Path(name).name, _DOCKER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
