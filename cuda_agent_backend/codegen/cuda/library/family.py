"""The family of library calls with kernels around them."""

from __future__ import annotations

from cuda_agent_backend.codegen.cuda.library.writer import (
    SKETCH,
    Library,
    LibraryParams,
    library_of,
)
from cuda_agent_backend.codegen.family import Family, Generator
from sandbox.task.task import Task


class LibraryCalls(Family[LibraryParams]):
    name = SKETCH
    title = "Products and convolutions by cuBLAS and cuDNN"
    docs = (
        "The first entry of a schedule is that of the calls, and those of kernels follow, part by part, as they would "
        "be for a part alone."
    )
    params = LibraryParams

    def analyse(self, task: Task, generator: Generator) -> Library | None:
        """None too where there is nothing around the calls."""
        return library_of(task, generator)
