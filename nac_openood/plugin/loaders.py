"""OpenOOD's training loader as NAC must see it: under the test transform."""

from __future__ import annotations

from typing import Any

from openood.preprocessors.base_preprocessor import BasePreprocessor
from openood.preprocessors.test_preprocessor import TestStandardPreProcessor
from torch.utils.data import DataLoader, Dataset


class UnaugmentedView(Dataset[dict[str, Any]]):
    """A data set whose `data` is its `data_aux`, which OpenOOD keeps under the test transform."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self.imglist = dataset.imglist

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        item = self._dataset[index]
        return {"data": item["data_aux"], "label": item["label"]}


def unaugmented(loader: Any) -> Any:
    """`loader` itself, or where it augments (as `main.py`'s training loader) one that does not."""
    dataset = getattr(loader, "dataset", None)
    augments = getattr(dataset, "preprocessor", None)
    if not isinstance(augments, BasePreprocessor) or isinstance(augments, TestStandardPreProcessor):
        return loader
    return DataLoader(
        UnaugmentedView(dataset),
        batch_size=loader.batch_size or 1,
        num_workers=loader.num_workers,
        pin_memory=loader.pin_memory,
    )
