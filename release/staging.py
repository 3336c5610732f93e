"""A copy of the checkout with the addresses of a release written in; everything of the release is built from it.

What a copy has, and the checkout has not: `project.urls`, links of the long description that lead somewhere from
everywhere, and in the charts the published images, `home`, `sources`, `maintainers`, `icon` and the list of images that
Artifact Hub scans.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any, Final

import yaml

from release.building import yaml_text
from release.facts import AUTHORS, CHARTS, IMAGES, Address, ReleaseError, tracked, version_of

ICON: Final = "charts/icon.svg"
LINK: Final = re.compile(r"(?P<before>!?\[[^\]\n]*\]\()(?P<target>[^)\s]+)(?P<after>\))")
_ABSOLUTE: Final = re.compile(r"[a-z][a-z0-9+.-]*:|#|//")
_VALUES: Final = {
    "podkeeper-operator": {"  repository: podkeeper\n": "  repository: {image}\n"},
    "podkeeper-cluster": {"  imageRepository: podkeeper\n": "  imageRepository: {image}\n"},
}
"""Lines of a chart's values that name a place, with what stands there in a release."""


def stage(root: Path, target: Path, address: Address) -> None:
    """Copy the files that git knows to `target`, and write the addresses in."""
    for path in tracked(root):
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / path, target / path, follow_symlinks=False)
    version = version_of(root)
    _write_urls(target / "pyproject.toml", address, version)
    for readme in ("README.md", *(f"charts/{name}/README.md" for name in CHARTS)):
        file = target / readme
        text = file.read_text(encoding="utf-8")
        file.write_text(with_absolute_links(text, address, version, Path(readme).parent), encoding="utf-8")
    for name in CHARTS:
        _write_chart(target / "charts" / name, address, version)
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    for each in target.rglob("*"):
        os.utime(each, (seconds, seconds), follow_symlinks=False)


def with_absolute_links(text: str, address: Address, version: str, folder: Path = Path()) -> str:
    """The page `text` of `folder` with links that lead to the repository, as of this version."""

    def absolute(found: re.Match[str]) -> str:
        target = found["target"]
        if _ABSOLUTE.match(target):
            return found[0]
        path, mark, heading = target.partition("#")
        place = _below_root(folder, path)
        url = address.raw(place, version) if found["before"].startswith("!") else address.page(place, version)
        return f"{found['before']}{url}{mark}{heading}{found['after']}"

    return LINK.sub(absolute, text)


def urls(address: Address, version: str) -> dict[str, str]:
    """The addresses that a package index shows."""
    return {
        "Homepage": address.url,
        "Documentation": address.page("docs", version),
        "Source": address.url,
        "Issues": f"{address.url}/issues",
        "Changelog": address.page("CHANGELOG.md", version),
    }


def chart_facts(name: str, address: Address, version: str) -> dict[str, Any]:
    """The fields of a published Chart.yaml that need an address."""
    return {
        "home": address.url,
        "sources": [address.url, address.page(f"charts/{name}", version)],
        "icon": address.raw(ICON, version),
        "maintainers": [{"name": AUTHORS, "url": address.url}],
    }


def chart_images(address: Address, version: str) -> list[dict[str, Any]]:
    """The images of a chart, as Artifact Hub's annotation has them."""
    platforms = ["linux/amd64", "linux/arm64"]
    found = [
        {"name": name, "image": address.image(name, version), "platforms": platforms}
        for name in IMAGES
        if name == "podkeeper"
    ]
    spark = {"name": "podkeeper-spark", "image": address.image("podkeeper", version) + "-spark", "platforms": platforms}
    return [*found, spark]


def _write_urls(file: Path, address: Address, version: str) -> None:
    lines = [f'{name} = "{url}"' for name, url in urls(address, version).items()]
    text = file.read_text(encoding="utf-8")
    table = "[project.scripts]\n"
    if text.count(table) != 1 or "[project.urls]" in text:
        raise ReleaseError(f"{file.name}: one [project.scripts] and no [project.urls] are expected")
    file.write_text(text.replace(table, "\n".join(["[project.urls]", *lines, "", table])), encoding="utf-8")


def _write_chart(chart: Path, address: Address, version: str) -> None:
    file = chart / "Chart.yaml"
    about = yaml.safe_load(file.read_text(encoding="utf-8"))
    about.update(chart_facts(chart.name, address, version))
    about["annotations"]["artifacthub.io/images"] = yaml.safe_dump(chart_images(address, version), sort_keys=False)
    file.write_text(yaml_text(about), encoding="utf-8")
    image = address.registry
    values = chart / "values.yaml"
    text = values.read_text(encoding="utf-8")
    for before, after in _VALUES[chart.name].items():
        if text.count(before) != 1:
            raise ReleaseError(f"{chart.name}/values.yaml: {before.strip()!r} is expected once")
        text = text.replace(before, after.format(image=image))
    values.write_text(text, encoding="utf-8")
    readme = chart / "README.md"
    page = readme.read_text(encoding="utf-8")
    page = page.replace(" . --namespace", f" {address.charts}/{chart.name} --version {version} --namespace")
    page = page.replace('`"podkeeper"`', f'`"{image}"`')
    readme.write_text(page, encoding="utf-8")


def _below_root(folder: Path, path: str) -> str:
    parts: list[str] = list(folder.parts)
    for part in path.split("/"):
        if part == "..":
            if not parts:
                raise ReleaseError(f"the link {path} of {folder} leads out of the repository")
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts)
