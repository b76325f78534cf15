"""The images that NAC found hardest, as thumbnails beside the results."""

from __future__ import annotations

from typing import Iterator

import numpy as np

from nac_openood.bench.methods import NAC
from nac_openood.bench.scorer import Scored
from nac_openood.bench.sets import ImageSet
from nac_openood.compare import cells
from nac_openood.compare.results import Example
from nac_openood.compare.study import Study
from nac_openood.core import files
from nac_openood.core.files import make_folder

_SIDE = 96
#: How many images of the ID test set and of each OOD set.
_INSIDE, _OUTSIDE = 8, 4


def hardest(study: Study, run: str) -> tuple[Example, ...]:
    """ID images scored lowest and OOD images scored highest, written to `gallery/`."""
    examples: list[Example] = []
    for name, role in study.sets.roles().items():
        scored = cells.read_scores(study.out, run, NAC, name)
        if scored is None or role == "csid":
            continue
        images = study.sets.scored()[name]
        order = np.argsort(scored.score, kind="stable")
        taken = order[:_INSIDE] if role == "id" else order[::-1][:_OUTSIDE]
        kind = "id-lowest" if role == "id" else "ood-highest"
        examples.extend(_examples(study, kind, name, images, scored, taken))
    return tuple(examples)


def _examples(
    study: Study, kind: str, dataset: str, images: ImageSet, scored: Scored, taken: np.ndarray
) -> Iterator[Example]:
    folder = make_folder(study.out / "gallery")
    for rank, index in enumerate(taken.tolist()):
        picture = images.picture(index)
        picture.thumbnail((_SIDE, _SIDE))
        file = folder / f"{dataset}_{rank}.png"
        with files.replacing(file) as temporary:
            picture.save(temporary, format="PNG")
        layers = {name: float(values[index]) for name, values in scored.layers.items()}
        yield Example(
            kind, dataset, images.names[index], float(scored.score[index]), layers,
            f"gallery/{file.name}",
        )  # fmt: skip
