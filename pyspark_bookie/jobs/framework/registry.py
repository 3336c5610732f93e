"""Jobs by name.

A job NAME is the package `pyspark_bookie.jobs.<name>` (hyphens as underscores, an underscore behind what Python
reserves) with a module `job`, in which a class is marked:

    @job("offload")
    class OffloadJob:
        "One line for the list of jobs.\n\nWhat --help says further."

        Arguments = OffloadArguments

        def run(self, context: JobContext[OffloadArguments]) -> JobResult: ...

Packages need no entry anywhere. A `job` module imports neither Spark nor pyarrow at its top, so that `--help` is quick.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import keyword
import pkgutil
from collections.abc import Callable
from importlib import resources
from typing import Any, Final, Protocol, TypeVar

from pyspark_bookie.jobs.framework.arguments import UsageError
from pyspark_bookie.jobs.framework.common import CommonArguments
from pyspark_bookie.jobs.framework.context import JobContext
from pyspark_bookie.jobs.framework.result import JobResult

_PARENT: Final = "pyspark_bookie.jobs"


class Job(Protocol):
    """What `job` marks; made without arguments, run once."""

    def run(self, context: JobContext[Any]) -> JobResult:
        """Raises what the job cannot deal with: `PodkeeperError` and `UsageError` become one line."""
        ...


C = TypeVar("C", bound=type[Any])
_MARKED: Final[dict[str, type[Any]]] = {}


def job(name: str) -> Callable[[C], C]:
    """Marks the class of the job of this name."""

    def mark(marked: C) -> C:
        if not issubclass(marked.Arguments, CommonArguments):
            raise TypeError(f"{marked.__name__}.Arguments must extend CommonArguments")
        _MARKED[name] = marked
        return marked

    return mark


def job_names() -> list[str]:
    """All jobs there are, sorted."""
    found = importlib.import_module(_PARENT)
    packages = (module.name for module in pkgutil.iter_modules(found.__path__) if module.ispkg)
    return sorted(_name(package) for package in packages if _has_job(package))


def find_job(name: str) -> type[Any]:
    """The class of a job. Raises `UsageError`, with the nearest name."""
    name = name.replace("_", "-")
    names = job_names()
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names) or 'none'}"
        raise UsageError(f"unknown job {name!r}: {hint}")
    importlib.import_module(f"{_PARENT}.{_package(name)}.job")
    return _MARKED[name]


def description(marked: type[Any]) -> str:
    """What `--help` says of a job."""
    return inspect.getdoc(marked) or ""


def summary(marked: type[Any]) -> str:
    """The first line of its docstring."""
    return description(marked).partition("\n")[0]


def _package(name: str) -> str:
    package = name.replace("-", "_")
    return package + "_" if keyword.iskeyword(package) else package


def _name(package: str) -> str:
    return package.rstrip("_").replace("_", "-")


def _has_job(package: str) -> bool:
    return package != "framework" and resources.files(f"{_PARENT}.{package}").joinpath("job.py").is_file()
