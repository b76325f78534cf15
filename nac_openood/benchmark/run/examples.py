"""Samples of a comparison to show: the hardest ones, and confident mistakes with their p-values."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Iterator, Optional, Sequence

import numpy as np
import torch

from nac_openood.benchmark.methods.table import METHODS, NAC
from nac_openood.benchmark.run import results, store
from nac_openood.core.pvalues import ALPHA, PValues
from nac_openood.detector.outcomes import Scores
from nac_openood.errors import error_text
from nac_openood.files import make_folder, replacing
from nac_openood.sources.images import small_png
from nac_openood.sources.samples import base_dataset

if TYPE_CHECKING:
    from nac_openood.benchmark.run.compare import Study

NAC_PLUS, CONFIDENCE = "nac_plus", "msp"
#: How many of the hardest samples of the ID test set and of each OOD set are shown.
_HARDEST_ID, _HARDEST_OOD = 8, 4
#: The network counts as sure from this confidence on. At most three mistakes are shown, one per OOD
#: set: of the ten most confident, the one whose picture has the most detail (the largest PNG).
_SURE, _MISTAKES, _SUREST = 0.9, 3, 10
#: How many pictures are shown of the classes, and of each OOD set.
_CLASSES, _OF_SET = 8, 4


def hardest(study: Study, run: str, ready: Sequence[str]) -> Iterator[results.HardSample]:
    """ID samples with the lowest and OOD samples with the highest scores of NAC+ and NAC.

    Args:
        study: the comparison.
        run: name of the network.
        ready: names of the methods with results.
    """
    for method in [name for name in (NAC_PLUS, NAC) if name in ready]:
        scored = _scores(study, run, method)
        for name, stored in scored.items():
            order = np.argsort(stored.score, kind="stable")
            inside = study.sets.roles()[name] == "id"
            kind = "id-lowest" if inside else "ood-highest"
            for index in (order[:_HARDEST_ID] if inside else order[::-1][:_HARDEST_OOD]).tolist():
                parts = {layer: float(part[index]) for layer, part in stored.by_layer.items()}
                if method != NAC:  # the share of ID test samples with values as low
                    known = scored["test"].by_layer
                    parts = {n: float((known[n] <= value).mean()) for n, value in parts.items()}
                title, score = study.scored[name].sample_name(index), float(stored.score[index])
                file = _save_picture(study, name, index)
                yield results.HardSample(kind, name, title, score, parts, file, method)


def confident_mistakes(
    study: Study, run: str, ready: Sequence[str]
) -> Optional[results.ConfidentMistakes]:
    """OOD samples that the network is sure about, and how many an alarm by NAC+ or NAC catches.

    None without results of MSP (the confidence) and of one of these, or without such samples.
    Arguments are as for `hardest`.
    """
    rule = next((name for name in (NAC_PLUS, NAC) if name in ready), None)
    if rule is None or CONFIDENCE not in ready:
        return None
    confidence, scored = _scores(study, run, CONFIDENCE), _scores(study, run, rule)
    p_values = PValues(scored["test"].score)
    counts, found = {}, []
    for name in [*study.sets.near, *study.sets.far]:
        p = p_values(torch.tensor(scored[name].score)).numpy()
        sure = confidence[name].score >= _SURE
        counts[name] = len(p), int(sure.sum()), int((sure & (p <= ALPHA)).sum())
        surest = [i for i in np.argsort(-confidence[name].score)[:_SUREST].tolist() if sure[i]]
        if surest:
            best = max(surest, key=lambda index: len(_picture(study, name, index) or b""))
            found.append((float(confidence[name].score[best]), name, best, float(p[best])))
    if not found:
        return None
    names = getattr(base_dataset(study.sets.train), "classes", ())
    mistakes = [
        results.Mistake(
            name, study.scored[name].sample_name(index),
            str(names[answer] if answer < len(names) else answer), sure, p,
            _save_picture(study, name, index),
        )
        for sure, name, index, p in sorted(found, reverse=True)[:_MISTAKES]
        for answer in [int(confidence[name].prediction[index])]
    ]  # fmt: skip
    labels = confidence["test"].label
    known = [int(np.flatnonzero(labels == c)[0]) for c in np.unique(labels)[:_CLASSES]]
    spread = {n: np.linspace(0, counts[n][0], 2 * _OF_SET + 1)[1::2].astype(int) for n in counts}
    return results.ConfidentMistakes(
        METHODS[rule].title, study.sets.n_classes, len(scored["test"].score), counts,
        tuple(mistakes), _SURE, ALPHA, _pictures(study, "test", known),
        {n: _pictures(study, n, rows.tolist()) for n, rows in spread.items()},
    )  # fmt: skip


def _scores(study: Study, run: str, method: str) -> dict[str, Scores]:
    """The stored scores of all test sets but shifted ones."""
    folder = store.method_folder(study.out, run, method)
    names = [name for name, role in study.sets.roles().items() if role != "csid"]
    found = {name: store.read_scores(folder / f"{name}.safetensors") for name in names}
    return {name: stored.scores for name, stored in found.items() if stored is not None}


def _pictures(study: Study, dataset: str, indices: list[int]) -> tuple[str, ...]:
    files = (_save_picture(study, dataset, index) for index in dict.fromkeys(indices))
    return tuple(file for file in files if file is not None)


def _save_picture(study: Study, dataset: str, index: int) -> Optional[str]:
    """Save a small picture of a sample in `gallery/` and return its file; None without one."""
    content = _picture(study, dataset, index)
    if content is None:
        return None
    file = f"gallery/{dataset}_{index}.png"
    path = study.out / file
    make_folder(path.parent)
    with replacing(path) as temporary:
        temporary.write_bytes(content)
    return file


def _picture(study: Study, dataset: str, index: int) -> Optional[bytes]:
    """A small PNG of a sample, if the dataset has pictures."""
    try:
        picture: Any = study.scored[dataset].picture(index)
        return None if picture is None else small_png(picture)
    except Exception as error:  # an error in the user's code must not stop the comparison
        text = f"sample {index} of '{dataset}' has no picture: {error_text(error)}"
        warnings.warn(text, UserWarning, stacklevel=2)
        return None
