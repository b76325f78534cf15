"""A callback of PyTorch Lightning (which must be installed) that fits a detector after training."""

from __future__ import annotations

from itertools import chain
from typing import Any, Callable, Iterable, Optional

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn

from nac_openood.detector.batches import DEFAULT_SIZE, SampleCount
from nac_openood.detector.config import AUTO, LayerChoice
from nac_openood.detector.detector import NACDetector
from nac_openood.errors import NACError
from nac_openood.files import PathLike

#: Finds the network in a LightningModule.
FindNetwork = Optional[Callable[[Any], nn.Module]]


def trained_network(module: LightningModule, find: FindNetwork) -> nn.Module:
    """The network that a LightningModule trains: what `find` returns, or the module itself."""
    return module if find is None else find(module)


class DetectorCallback(Callback):
    """Fits a detector at the end of training, calibrates it and writes it to a file.

    The network runs in evaluation mode and is not changed. In distributed training, the first
    process does this, on what its loaders yield.

    Examples:
        >>> callback = DetectorCallback("detector.nac", train=train_loader_without_augmentation)
        >>> Trainer(callbacks=[callback]).fit(module, train_loader, val_loader)
        >>> callback.detector_.p_value(images)

    Args:
        path: where to write the detector, for `NACDetector.load`; None writes no file.
        layers: as in `NACDetector`.
        rule: as in `NACDetector`.
        n_samples: size of the fitting subset, as in `NACDetector.fit`.
        train: batches to fit on; None takes the trainer's, augmentation included, so pass a loader
            with the test transform if yours augments.
        val: batches to calibrate on; None takes the trainer's validation data.
        network: finds the network in the LightningModule, e.g. `lambda module: module.net`; None
            takes the module itself, whose `forward` must return logits.

    Attributes:
        detector_: the detector, after training.
    """

    def __init__(
        self,
        path: Optional[PathLike] = None,
        *,
        layers: LayerChoice = AUTO,
        rule: Optional[str] = None,
        n_samples: SampleCount = DEFAULT_SIZE,
        train: Optional[Iterable[Any]] = None,
        val: Optional[Iterable[Any]] = None,
        network: FindNetwork = None,
    ) -> None:
        self.path, self.layers, self.rule, self.n_samples = path, layers, rule, n_samples
        self.train, self.val, self.network = train, val, network
        self.detector_: Optional[NACDetector] = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check the settings before training, because the detector is fitted at its end."""
        NACDetector(trained_network(pl_module, self.network), self.layers, rule=self.rule)
        if self.val is None and not _loaders(trainer.val_dataloaders):
            raise NACError(
                "a detector is calibrated on validation data, but this training has none. Pass "
                "`val` to DetectorCallback, or validation batches to Trainer.fit."
            )

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Fit, calibrate and write."""
        if not trainer.is_global_zero:
            return
        net = trained_network(pl_module, self.network)
        train: Any = trainer.train_dataloader if self.train is None else self.train
        val = chain(*_loaders(trainer.val_dataloaders)) if self.val is None else self.val
        detector = NACDetector(net, self.layers, rule=self.rule)
        detector.fit(train, self.n_samples, progress=False).calibrate(val, progress=False)
        if self.path is not None:
            detector.save(self.path)
        self.detector_ = detector


def _loaders(loaders: Any) -> list[Iterable[Any]]:
    """Lightning's loaders as a list: there may be none, one, or several in a list or dict."""
    if loaders is None:
        return []
    loaders = list(loaders.values()) if isinstance(loaders, dict) else loaders
    return list(loaders) if isinstance(loaders, (list, tuple)) else [loaders]
