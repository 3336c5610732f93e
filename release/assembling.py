"""All files of a release, in one directory."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from release import plugin, sbom
from release.building import archive, archive_folder, build_distributions
from release.bundle import bundle
from release.facts import CHARTS, Address, Made, version_of
from release.staging import stage

SUMS = "SHA256SUMS"


def assemble(root: Path, address: Address, directory: Path) -> Made:
    """Write the release of the checkout at `root` to `directory`. Raises ReleaseError."""
    made = Made(directory, address, version_of(root))
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="podkeeper-release-") as folder:
        source = Path(folder) / "podkeeper"
        stage(root, source, address)
        build_distributions(source, directory)
        write_others(source, made)
    return made


def write_others(source: Path, made: Made) -> None:
    """Write all but wheel and source distribution, from a checkout with addresses, and the digests of all files."""
    for name in CHARTS:
        made.chart(name).write_bytes(archive_folder(source / "charts" / name, name))
    plugin.write_plugin(source, made)
    made.bundle.write_bytes(archive({path: text.encode() for path, text in bundle(source, made.address).items()}))
    for image in sbom.LISTS:
        listed = made.directory / f"{image}-{made.version}.cdx.json"
        listed.write_text(sbom.bill_of_materials(source, image), encoding="utf-8")
    write_sums(made)


def write_sums(made: Made) -> None:
    """Write the digests of all files."""
    parts = sorted(path for path in made.directory.iterdir() if path.is_file() and path.name != SUMS)
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in parts]
    (made.directory / SUMS).write_text("".join(sums), encoding="utf-8")
