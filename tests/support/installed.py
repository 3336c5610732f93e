"""An environment as a user's: a virtual environment with the wheel of this checkout and the packages that its extras
name, and nothing activated.

The packages are links to those installed here, so no index is asked. The wheel is built from a copy, so the checkout
stays as it is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.clean_environment import ROOT, link_packages
from tests.support.java import java_home

_SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
_SOURCES = ("pyproject.toml", "README.md", "LICENSE")
_PACKAGES = (
    "podkeeper",
    "bookie_protocol",
    "bookie_client",
    "bookie_pod",
    "pyspark_bookie",
    "operator/bookie_operator",
)
_SPARK_COMMANDS = ("spark-submit", "spark-class", "find-spark-home", "find_spark_home.py", "load-spark-env.sh")


class Installed:
    """The environment, made in `directory`. `extras` are those that are installed with the wheel."""

    def __init__(self, directory: Path, *extras: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.home = directory / "home"
        self.home.mkdir()
        self._venv = directory / "venv"
        venv.EnvBuilder(with_pip=False, symlinks=True).create(self._venv)
        packages = self._venv / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
        link_packages(packages, extras)
        uv = Path(sys.executable).with_name("uv")
        subprocess.run(
            [
                uv,
                "pip",
                "install",
                "-q",
                "--offline",
                "--no-deps",
                "--python",
                self.command("python"),
                _wheel(directory),
            ],
            check=True,
        )
        for name in _SPARK_COMMANDS if "spark" in extras else ():
            (self._venv / "bin" / name).symlink_to(Path(sys.executable).with_name(name))

    def command(self, name: str) -> str:
        """The path of a command of the environment."""
        return str(self._venv / "bin" / name)

    def variables(self, **more: str) -> dict[str, str]:
        """Those of a login without any setting. `PATH` in `more` replaces the system's."""
        return {
            "PATH": _SYSTEM_PATH,
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "TMPDIR": os.environ.get("TMPDIR", "/tmp"),
            "XDG_RUNTIME_DIR": str(self.home),
            "JAVA_HOME": str(java_home()),
            "SPARK_LOCAL_IP": "127.0.0.1",
            **more,
        }

    def activated(self) -> dict[str, str]:
        """The same after `. venv/bin/activate`."""
        return self.variables(PATH=f"{self._venv / 'bin'}:{_SYSTEM_PATH}", VIRTUAL_ENV=str(self._venv))

    def run(
        self,
        *words: str,
        variables: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        seconds: float = 100,
        text: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of the environment. `text` is its input."""
        command: Sequence[str] = [self.command(words[0]), *words[1:]]
        return subprocess.run(
            command,
            env=dict(variables) if variables is not None else self.variables(),
            cwd=cwd or self.home,
            input=text or "",
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
        )


def _wheel(directory: Path) -> Path:
    source = directory / "source"
    source.mkdir()
    for name in _SOURCES:
        shutil.copy(ROOT / name, source / name)
    for package in _PACKAGES:
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    uv = Path(sys.executable).with_name("uv")
    subprocess.run(
        [
            uv,
            "build",
            "-q",
            "--wheel",
            "--offline",
            "--no-build-isolation",
            "--python",
            sys.executable,
            "-o",
            directory,
            source,
        ],
        check=True,
    )
    (made,) = directory.glob("*.whl")
    return made
