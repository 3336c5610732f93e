"""Lists of what is in the images (CycloneDX), made of the lock files that they are built from."""

from __future__ import annotations

import datetime
import os
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cyclonedx.model import Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

from release.facts import LICENSE, version_of

LISTS: Final = {"podkeeper": "requirements-runtime.lock", "podkeeper-spark": "requirements-spark.lock"}
"""Images, each with the lock file of its packages."""
_LOCKED: Final = re.compile(
    r"^(?P<name>[a-z0-9._-]+)==(?P<version>\S+) \\\n(?P<hashes>(?: +--hash=\S+(?: \\)?\n)+)", re.M
)
_NAMES: Final = uuid.UUID("6f1c0a52-6a0b-5d9e-9f2a-0f3f3a8f6f55")


@dataclass(frozen=True)
class Locked:
    """A package of a lock file."""

    name: str
    version: str
    sha256: tuple[str, ...]
    """Of its archives: the image has one of them."""


def locked(lock: Path) -> Iterator[Locked]:
    """The packages of a lock file."""
    for found in _LOCKED.finditer(lock.read_text(encoding="utf-8")):
        yield Locked(found["name"], found["version"], tuple(re.findall(r"sha256:(\w+)", found["hashes"])))


def bill_of_materials(root: Path, image: str) -> str:
    """The list of an image as JSON of CycloneDX 1.6, the same for the same lock file and version."""
    version = version_of(root)
    itself = Component(
        name=image,
        version=version,
        type=ComponentType.CONTAINER,
        bom_ref=f"{image}@{version}",
        licenses=[LicenseExpression(LICENSE)],
    )
    bom = Bom(serial_number=uuid.uuid5(_NAMES, f"{image} {version}"))
    bom.metadata.component = itself
    bom.metadata.timestamp = datetime.datetime.fromtimestamp(
        int(os.environ.get("SOURCE_DATE_EPOCH", "0")), tz=datetime.UTC
    )
    parts = [_component(each) for each in locked(root / LISTS[image])]
    own = Component(
        name="podkeeper",
        version=version,
        type=ComponentType.APPLICATION,
        bom_ref=f"pkg:pypi/podkeeper@{version}",
        purl=PackageURL("pypi", name="podkeeper", version=version),
    )
    for part in (own, *parts):
        bom.components.add(part)
    bom.register_dependency(itself, [own, *parts])
    return str(make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=1))


def _component(package: Locked) -> Component:
    purl = PackageURL("pypi", name=package.name, version=package.version)
    return Component(
        name=package.name,
        version=package.version,
        type=ComponentType.LIBRARY,
        bom_ref=purl.to_string(),
        purl=purl,
        properties=[Property(name="podkeeper:archive:sha256", value=each) for each in package.sha256],
    )
