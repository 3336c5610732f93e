"""Jobs by name.

A job NAME is the module `pyspark_bookie.jobs.<name>` (hyphens as underscores, an underscore behind what Python
reserves), or where one file is too little the module `job` of a package of that name. A class in it is marked:

    @job("offload")
    class OffloadJob:
        "One line for the list of jobs.\n\nWhat --help says further."

        Arguments = OffloadArguments

        def run(self, context: JobContext[OffloadArguments]) -> JobResult: ...

Jobs need no entry anywhere. Their modules import neither Spark nor pyarrow at the top, so that `--help` is quick.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
from collections.abc import Callable
from importlib import resources
from typing import Any, Final, Protocol, TypeVar

from pyspark_bookie.jobs.framework.arguments import CommonArguments, UsageError
from pyspark_bookie.jobs.framework.context import JobContext
from pyspark_bookie.jobs.framework.result import JobResult

_PARENT: Final = "pyspark_bookie.jobs"
C = TypeVar("C", bound=type[Any])
_MARKED: Final[dict[str, type[Any]]] = {}


class Job(Protocol):
    """A class that `job` marks; made without arguments, run once."""

    def run(self, context: JobContext[Any]) -> JobResult:
        """Raises what the job cannot deal with: `PodkeeperError` and `UsageError` become one line."""
        ...


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
    return sorted(_modules())


def find_job(name: str) -> type[Any]:
    """Return the class of a job. Raises `UsageError`, with the nearest name."""
    name = name.replace("_", "-")
    modules = _modules()
    if name not in modules:
        near = difflib.get_close_matches(name, sorted(modules), n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(modules)) or 'none'}"
        raise UsageError(f"unknown job {name!r}: {hint}")
    importlib.import_module(modules[name])
    return _MARKED[name]


def description(marked: type[Any]) -> str:
    """Return the description of a job for `--help`."""
    return inspect.getdoc(marked) or ""


def summary(marked: type[Any]) -> str:
    """Return the first line of its docstring."""
    return description(marked).partition("\n")[0]


def _modules() -> dict[str, str]:
    """Return the modules of all jobs by name."""
    found = importlib.import_module(_PARENT)
    modules = {}
    for module in pkgutil.iter_modules(found.__path__, f"{_PARENT}."):
        name = module.name.rpartition(".")[2].rstrip("_").replace("_", "-")
        if not module.ispkg and module.name != f"{_PARENT}.__main__":
            modules[name] = module.name
        elif module.ispkg and resources.files(module.name).joinpath("job.py").is_file():
            modules[name] = f"{module.name}.job"
    return modules
