"""The samples that NAC finds hardest, with pictures if they have any."""

from __future__ import annotations

import warnings
from typing import Iterator, Optional

import numpy as np

from nac_openood import files
from nac_openood.benchmark.methods.table import NAC
from nac_openood.benchmark.run import cells
from nac_openood.benchmark.run.results import HardSample
from nac_openood.benchmark.run.study import Study
from nac_openood.detector.outcomes import Scores
from nac_openood.errors import error_text
from nac_openood.sources.images import small_png
from nac_openood.sources.samples import Samples

#: How many samples of the ID test set and of each OOD set.
_INSIDE, _OUTSIDE = 8, 4


def hardest(study: Study, run: str) -> tuple[HardSample, ...]:
    """ID samples with the lowest and OOD samples with the highest scores.

    Pictures are saved in `gallery/`.
    """
    examples: list[HardSample] = []
    for name, role in study.sets.roles().items():
        scored = cells.read_scores(study.out, run, NAC, name)
        if scored is None or role == "csid":
            continue
        order = np.argsort(scored.score, kind="stable")
        taken = order[:_INSIDE] if role == "id" else order[::-1][:_OUTSIDE]
        kind = "id-lowest" if role == "id" else "ood-highest"
        examples.extend(_examples(study, kind, name, scored, taken))
    return tuple(examples)


def _examples(
    study: Study, kind: str, dataset: str, scored: Scores, taken: np.ndarray
) -> Iterator[HardSample]:
    samples = study.scored[dataset]
    for rank, index in enumerate(taken.tolist()):
        content, file = _picture(samples, index), None
        if content is not None:
            file = f"gallery/{dataset}_{rank}.png"
            files.make_folder(study.out / "gallery")
            with files.replacing(study.out / file) as temporary:
                temporary.write_bytes(content)
        layers = {name: float(values[index]) for name, values in scored.by_layer.items()}
        name, score = samples.sample_name(index), float(scored.score[index])
        yield HardSample(kind, dataset, name, score, layers, file)


def _picture(samples: Samples, index: int) -> Optional[bytes]:
    try:
        picture = samples.picture(index)
        return None if picture is None else small_png(picture)
    except Exception as error:  # code of the user's: results are not lost for the lack of a picture
        warnings.warn(
            f"sample {index} of '{samples.name}' has no picture: {error_text(error)}",
            UserWarning,
            stacklevel=2,
        )
        return None
