"""The paper's numbers on choosing checkpoints (NAC-ME), and measured ones beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping, Optional

from nac_openood.benchmark.paper.published import PrintedValue, table, with_printed
from nac_openood.errors import NACError

#: The tables by dataset.
GENERALIZATION_TABLES: Mapping[str, str] = {
    "vlcs": "Table 23",
    "pacs": "Table 24",
    "officehome": "Table 25",
    "terraincognita": "Table 26",
}
#: The paper's names of networks by ours.
_ARCHITECTURES = {
    "resnet18": "resnet18",
    "resnet50": "resnet50",
    "timm:vit_tiny_patch16_224": "vit_t_16",
    "timm:vit_base_patch16_224": "vit_b_16",
    "vit_b_16": "vit_b_16",
}

#: (mean, standard error or None) by target domain (or `average`), criterion and metric.
MeasuredChoice = Mapping[str, Mapping[str, Mapping[str, tuple[Optional[float], Optional[float]]]]]


@dataclass(frozen=True)
class ChoiceComparison:
    """One number, measured and published, times 100; None if there is none.

    Args:
        domain: the target domain, or `average`.
        criterion: `validation`, `nac-me` or `oracle`.
        metric: `RC` or `ACC`.
        measured: mean over trials.
        measured_error: its standard error.
        published: the paper's number.
        published_error: the paper's standard error.
        difference: measured minus published.
    """

    domain: str
    criterion: str
    metric: str
    measured: Optional[float]
    measured_error: Optional[float]
    published: Optional[float]
    published_error: Optional[float]
    difference: Optional[float]


def published_choice(
    dataset: str, architecture: str
) -> dict[str, dict[str, dict[str, PrintedValue]]]:
    """The paper's RC and ACC by target domain (and `average`), criterion and metric.

    Args:
        dataset: `pacs`, `vlcs`, `officehome` or `terraincognita`.
        architecture: `resnet18`, `resnet50`, `vit_t_16` or `vit_b_16`, or the `arch` of such a
            network. Others are compared with ResNet-18, the smallest network of the paper.
    """
    if dataset not in GENERALIZATION_TABLES:
        known = ", ".join(GENERALIZATION_TABLES)
        raise NACError(f"the paper does not choose checkpoints on '{dataset}', only on {known}.")
    wanted = printed_architecture(architecture)
    found: dict[str, dict[str, dict[str, PrintedValue]]] = {}
    for at, value in table(GENERALIZATION_TABLES[dataset]).cells():
        if at["architecture"] == wanted and value is not None:
            by_domain = found.setdefault(at["domain"], {})
            by_domain.setdefault(at["criterion"], {})[at["metric"]] = value
    return found


def printed_architecture(architecture: str) -> str:
    """The paper's name of the network to compare `architecture` with."""
    names = set(_ARCHITECTURES.values())
    return _ARCHITECTURES.get(architecture, architecture if architecture in names else "resnet18")


def against_choice(
    measured: MeasuredChoice, dataset: str, architecture: str
) -> list[ChoiceComparison]:
    """Put measured numbers beside those of the paper, in the order of `measured`.

    Args:
        measured: times 100, as the paper prints them; None where a value is undefined.
        dataset: as in `published_choice`.
        architecture: as in `published_choice`.
    """
    printed = published_choice(dataset, architecture)
    rows = []
    for domain, criteria in measured.items():
        # DomainBed's folder `Real World` is `real_world` in the tables
        values = printed.get(domain.strip().lower().replace(" ", "_"), {})
        for criterion, metrics in criteria.items():
            for metric, (mean, error) in metrics.items():
                numbers = with_printed(mean, error, values.get(criterion, {}).get(metric))
                rows.append(ChoiceComparison(domain, criterion, metric, *numbers))
    return rows
