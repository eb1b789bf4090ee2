"""All models, by target and name."""

from __future__ import annotations

from benchmarks.whole_models import images, others, small, text
from benchmarks.whole_models.subject import Subject

LARGE = (*text.SUBJECTS, *images.SUBJECTS, *others.SUBJECTS)
SUBJECTS: dict[str, dict[str, Subject]] = {
    "cpu": {subject.name: subject for subject in small.SUBJECTS},
    "cuda": {subject.name: subject for subject in LARGE},
}
