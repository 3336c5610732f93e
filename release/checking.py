"""The agreement of a checkout with a release that was made of it. Each fault is one line, with its place."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from release import bundle, changes, mentions, plugin
from release.building import members
from release.distributions import check_distributions
from release.facts import CHARTS, IMAGES, Made, project, version_of
from release.mentions import Mention, Mentions
from release.staging import chart_facts, chart_images

COPIES: Final = "charts/podkeeper-operator/files/crds"
_IMAGE_VALUES: Final = {"podkeeper-operator": ("image", "repository"), "podkeeper-cluster": ("test", "imageRepository")}
"""The places in a chart's values that name the image."""
_SITE: Final = re.compile(r"https://[\w.-]+\.github\.io/[\w.-]+/")
_EXTRA: Final = re.compile(r"(?:podkeeper|'\.|\"\.)\[(?P<extras>[a-z0-9,]+)\]")


def check_checkout(root: Path) -> list[str]:
    """The faults of a checkout."""
    found = mentions.find(root)
    return [
        *_versions(root, found),
        *_image_names(root, found.images),
        *_sites(root),
        *_definitions(root, found.api_versions),
        *_extras(root),
        *changes.faults(root),
    ]


def check_release(root: Path, made: Made) -> list[str]:
    """The faults of a release made of the checkout at `root`."""
    return [*check_distributions(root, made), *check_others(root, made)]


def check_others(root: Path, made: Made) -> list[str]:
    """The faults of all but wheel and source distribution."""
    return [
        *_charts(made),
        *_bundle(root, made),
        *_krew(root, made),
        *_sums(made),
    ]


def _versions(root: Path, found: Mentions) -> Iterator[str]:
    version = version_of(root)
    for each in [*found.versions, *found.images]:
        if each.version != version:
            yield f"{each.path}:{each.line}: version {each.version}, but pyproject.toml has {version}"
    for name in CHARTS:
        about = _yaml((root / "charts" / name / "Chart.yaml").read_text(encoding="utf-8"))
        for field in ("version", "appVersion"):
            if str(about.get(field)) != version:
                yield f"charts/{name}/Chart.yaml: {field} is {about.get(field)}, but pyproject.toml has {version}"
    for line, text in enumerate((root / "Dockerfile").read_text(encoding="utf-8").splitlines(), 1):
        if re.match(r"ARG VERSION=\d", text):
            yield f"Dockerfile:{line}: it names a version; docker/images gives that of pyproject.toml"


def _image_names(root: Path, images: Sequence[Mention]) -> Iterator[str]:
    known = ", ".join(sorted(IMAGES))
    for each in images:
        if each.name not in IMAGES:
            yield f"{each.path}:{each.line}: image {each.name} is not one of {known}"
    for chart, keys in _IMAGE_VALUES.items():
        value = _value(_yaml((root / "charts" / chart / "values.yaml").read_text(encoding="utf-8")), keys)
        if value not in IMAGES:
            yield f"charts/{chart}/values.yaml: {'.'.join(keys)} is {value}, not one of {known}"


def _sites(root: Path) -> Iterator[str]:
    """Alerts link to the pages that mkdocs.yml names."""
    text = (root / "mkdocs.yml").read_text(encoding="utf-8")
    site = _SITE.search(text)
    for chart in CHARTS:
        values = (root / "charts" / chart / "values.yaml").read_text(encoding="utf-8")
        found = _SITE.search(values)
        if site is None or found is None or found[0] != site[0]:
            yield f"charts/{chart}/values.yaml: runbookUrl is not below site_url of mkdocs.yml"


def _definitions(root: Path, api_versions: Sequence[Mention]) -> Iterator[str]:
    definitions = {path.name: path.read_text(encoding="utf-8") for path in sorted((root / "crds").glob("*.yaml"))}
    copies = {path.name: path.read_text(encoding="utf-8") for path in sorted((root / COPIES).glob("*.yaml"))}
    for name in sorted(definitions.keys() | copies.keys()):
        if definitions.get(name) != copies.get(name):
            yield f"{COPIES}/{name}: differs from crds/{name}; run `make docs`"
    served = {version["name"] for text in definitions.values() for version in _yaml(text)["spec"]["versions"]}
    for each in api_versions:
        if each.version not in served:
            known = ", ".join(sorted(served))
            yield f"{each.path}:{each.line}: API version {each.version} is not served; crds/ has {known}"
    announced = _yaml((root / bundle.CHART / "Chart.yaml").read_text(encoding="utf-8"))["annotations"]
    stated = {(each["name"], each["version"]) for each in yaml.safe_load(announced["artifacthub.io/crds"])}
    defined = {
        (about["metadata"]["name"], version["name"])
        for about in map(_yaml, definitions.values())
        for version in about["spec"]["versions"]
    }
    for name, version in sorted(stated ^ defined):
        where = "is not in crds/" if (name, version) in stated else "is not in artifacthub.io/crds"
        yield f"{bundle.CHART}/Chart.yaml: {name} {version} {where}"


def _extras(root: Path) -> Iterator[str]:
    """Pages name extras that exist."""
    extras = set(project(root)["optional-dependencies"])
    for page in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
        for line, text in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            for found in _EXTRA.finditer(text):
                for extra in set(found["extras"].split(",")) - extras:
                    yield f"{page.relative_to(root)}:{line}: extra {extra} is not in pyproject.toml"


def _charts(made: Made) -> Iterator[str]:
    for name in CHARTS:
        files = members(made.chart(name))
        about = _yaml(files[f"{name}/Chart.yaml"].decode())
        archive = made.chart(name).name
        for field in ("version", "appVersion"):
            if str(about.get(field)) != made.version:
                yield f"{archive}: {field} is {about.get(field)}, but the release is {made.version}"
        for field, expected in chart_facts(name, made.address, made.version).items():
            if about.get(field) != expected:
                yield f"{archive}: {field} is {about.get(field)}, expected {expected}"
        images = yaml.safe_load(about["annotations"].get("artifacthub.io/images", "[]"))
        if images != chart_images(made.address, made.version):
            yield f"{archive}: artifacthub.io/images differs from the images of the release"
        image = _value(_yaml(files[f"{name}/values.yaml"].decode()), _IMAGE_VALUES[name])
        if image != made.address.registry:
            yield f"{archive}: the image is {image}, but the release has {made.address.registry}"


def _bundle(root: Path, made: Made) -> Iterator[str]:
    there = {path: text.encode() for path, text in bundle.bundle(root, made.address).items()}
    packed = members(made.bundle)
    for path in sorted(there.keys() | packed.keys()):
        if there.get(path) != packed.get(path):
            yield f"{made.bundle.name}: {path} differs from what the definitions and the chart give"


def _krew(root: Path, made: Made) -> Iterator[str]:
    manifest = _yaml(made.krew.read_text(encoding="utf-8"))
    digest = hashlib.sha256(made.plugin.read_bytes()).hexdigest()
    expected = plugin.krew_manifest(root, made, digest)
    for field, value in expected["spec"].items():
        if field != "platforms" and manifest["spec"].get(field) != value:
            yield f"{made.krew.name}: {field} is {manifest['spec'].get(field)!r}, expected {value!r}"
    (platform,) = expected["spec"]["platforms"]
    inside = members(made.plugin)
    for given in manifest["spec"].get("platforms", [{}]):
        for field in ("uri", "sha256", "bin"):
            if given.get(field) != platform[field]:
                yield f"{made.krew.name}: {field} is {given.get(field)}, expected {platform[field]}"
        for name in [each["from"] for each in given.get("files", [])]:
            if name not in inside:
                yield f"{made.krew.name}: {made.plugin.name} has no file {name}"


def _sums(made: Made) -> Iterator[str]:
    lines = (made.directory / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    listed = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    for name, digest in listed.items():
        path = made.directory / name
        if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            yield f"SHA256SUMS: {name} has another digest"
    for path in sorted(made.directory.iterdir()):
        if path.is_file() and path.name not in {*listed, "SHA256SUMS"}:
            yield f"SHA256SUMS: {path.name} is not listed"


def _value(values: Any, keys: Sequence[str]) -> Any:
    for key in keys:
        values = values.get(key) if isinstance(values, dict) else None
    return values


def _yaml(text: str) -> dict[str, Any]:
    return dict(yaml.load(text, yaml.CSafeLoader))
