"""A detector of stored activations and logits: arrays in, arrays out, without the network."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Iterator, Mapping, Optional, Sequence, Union
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor, nn

from nac_openood.core.fusion import LOGITS
from nac_openood.core.layer_config import LayoutConfig
from nac_openood.core.pvalues import ALPHA
from nac_openood.detector.detector import NACDetector
from nac_openood.errors import FileError, NACError
from nac_openood.files import PathLike

_BATCH_SIZE = 1000
#: The note of a detector with its number of logits.
_WIDTH = "n_logits"


class ArrayDetector:
    """NAC+ of stored arrays: activations of layers by name, and logits.

    Args:
        layers: names of the arrays that are activations, `[samples, neurons]`, or `[samples,
            channels, height, width]`, which are averaged over positions.
        head_input: which of them is the input of the head, which NAC+ sets against the logits;
            without it, this is NAC+ 1.
        rule: as in `NACDetector`; a rule that needs no gradients.

    Attributes:
        detector_: the `NACDetector` behind it, for everything else that it can do; its loaders and
            batches are what `batches` yields.

    Examples:
        >>> train, val, new = map(read_arrays, ("train.npz", "val.npz", "new.npz"))
        >>> det = ArrayDetector(["middle", "features"], head_input="features")
        >>> det.fit(train).calibrate(val)
        >>> det.p_value(new)  # NumPy, [samples]
    """

    def __init__(
        self,
        layers: Sequence[str],
        *,
        head_input: Optional[str] = None,
        rule: Optional[str] = None,
    ) -> None:
        self.layers = [layers] if isinstance(layers, str) else list(layers)
        if head_input not in (None, *self.layers):
            raise NACError(f"head_input must be one of {self.layers}, got {head_input!r}.")
        settings: Any = self.layers
        if head_input is not None:
            settings = {n: LayoutConfig(head_input=n == head_input) for n in self.layers}
        self.detector_ = NACDetector(_Stored(self.layers), settings, rule=rule)
        if self.detector_._new_rule().needs.gradients:
            raise NACError("this rule needs gradients, which arrays do not have: use 'nac_plus'.")

    def __repr__(self) -> str:
        text = repr(self.detector_).replace("NACDetector", "ArrayDetector", 1)
        return text.replace("on _Stored", "on stored arrays", 1)

    def fit(self, arrays: Mapping[str, Any], labels: Any = None) -> ArrayDetector:
        """Fit on arrays of training data; `labels` `[samples]` are checked and counted."""
        self.detector_.notes_.pop(_WIDTH, None)
        self.detector_.fit(self.batches(arrays, labels))
        self.detector_.notes_[_WIDTH] = str(np.shape(arrays[LOGITS])[-1])
        return self

    def calibrate(
        self, arrays: Mapping[str, Any], tpr: float = 1 - ALPHA, **options: Any
    ) -> ArrayDetector:
        """Calibrate on arrays of held-out in-distribution data, as `NACDetector.calibrate`."""
        self.detector_.calibrate(self.batches(arrays), tpr, **options)
        return self

    def score(self, arrays: Mapping[str, Any], *, nonfinite: str = "raise") -> np.ndarray:
        """Scores `[samples]`; higher = more in-distribution; see `NACDetector.score`."""
        return self._each(partial(self.detector_.score, nonfinite=nonfinite), arrays)

    def p_value(self, arrays: Mapping[str, Any]) -> np.ndarray:
        """How unusual each sample is, `[samples]`; see `NACDetector.p_value`."""
        return self._each(self.detector_.p_value, arrays)

    def predict(self, arrays: Mapping[str, Any]) -> np.ndarray:
        """True = in-distribution, `[samples]`."""
        return self._each(self.detector_.predict, arrays)

    def save(self, path: PathLike) -> None:
        """Write the detector, as `NACDetector.save`."""
        self.detector_.save(path)

    @classmethod
    def load(cls, path: PathLike, layers: Sequence[str]) -> ArrayDetector:
        """Load what `save` wrote.

        It cannot tell whether arrays that it is given are of the same network.
        """
        found = cls(layers)
        found.detector_ = NACDetector.load(path, found.detector_.net)
        return found

    def batches(self, arrays: Mapping[str, Any], labels: Any = None) -> Iterator[dict[str, Tensor]]:
        """Arrays as batches of what `detector_` reads."""
        names = [*self.layers, LOGITS]
        if not hasattr(arrays, "keys"):
            raise NACError(f"expected arrays by name, {names}, got {type(arrays).__name__}.")
        missing = [name for name in names if name not in arrays]
        if missing:
            raise NACError(f"there are no arrays {missing}: expected {names}, got {list(arrays)}.")
        found = {name: np.asarray(arrays[name]) for name in names}
        width = self.detector_.notes_.get(_WIDTH)
        if found[LOGITS].ndim > 1 and width not in (None, str(found[LOGITS].shape[1])):
            raise NACError(f"expected {width} logits, as in the fit, got {found[LOGITS].shape[1]}.")
        if labels is not None:
            found["label"] = np.asarray(labels)
        for name, array in found.items():
            if array.dtype.kind not in "fiub" or not array.ndim:
                raise NACError(
                    f"expected arrays of numbers with rows of equal length, got {array.dtype} of "
                    f"shape {list(array.shape)} in '{name}'."
                )
        sizes = {name: len(array) for name, array in found.items()}
        if len(set(sizes.values())) != 1:
            raise NACError(f"all arrays must have the same number of samples, got {sizes}.")
        for start in range(0, sizes[LOGITS], _BATCH_SIZE):
            rows = slice(start, start + _BATCH_SIZE)
            yield {name: torch.from_numpy(array[rows].copy()) for name, array in found.items()}

    def _each(self, work: Any, arrays: Mapping[str, Any]) -> np.ndarray:
        parts = [work(batch) for batch in self.batches(arrays)]
        if not parts:
            raise NACError("the arrays have no samples: there is nothing to score.")
        return torch.cat(parts).numpy()


class _Stored(nn.Module):
    """A network that returns the logits it is given; its layers return the given activations."""

    def __init__(self, layers: Sequence[str]) -> None:
        super().__init__()
        self._layers = layers
        for name in layers:
            module: nn.Module = self
            if hasattr(nn.Module, name.partition(".")[0]):
                raise NACError(f"a layer cannot have the name '{name}': name the array otherwise.")
            for part in name.split("."):  # names may be module paths
                module = module._modules.setdefault(part, nn.Identity())  # type: ignore[assignment]

    def forward(self, **arrays: Tensor) -> Tensor:
        for name in self._layers:
            self.get_submodule(name)(arrays[name])
        return arrays[LOGITS]


def read_arrays(path: Union[str, Path]) -> dict[str, np.ndarray]:
    """Read arrays by name from an `.npz` file, or from the columns of a Parquet file.

    A Parquet file has a row per sample, with a number or a list of numbers in each column; reading
    it needs pyarrow.
    """
    if Path(path).suffix not in (".npz", ".parquet"):
        raise NACError(f"expected a file of type .npz or .parquet, got {path}.")
    try:
        if Path(path).suffix == ".npz":
            with Path(path).open("rb") as file, np.load(file) as stored:  # refuses pickles
                return dict(stored)
        from pyarrow import parquet

        table = parquet.read_table(path)
    except (OSError, ValueError, BadZipFile) as error:
        raise FileError(f"{path} cannot be read: {error}.") from error
    columns = {name: table.column(name).to_numpy() for name in table.column_names}
    return {name: _stacked(c) if c.dtype == object else c for name, c in columns.items()}


def _stacked(column: Any) -> np.ndarray:
    """A column of lists, which arrives as an array of arrays; as it is if they differ in length."""
    try:
        return np.stack(column)
    except ValueError:  # an error only where this column is needed
        return np.asarray(column)
