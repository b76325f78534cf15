"""NAC-ME as a callback of PyTorch Lightning, which must be installed to import this file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Iterable, Optional

from lightning.pytorch import Callback, LightningModule, Trainer

from nac_openood.adapters.lightning import FindNetwork, trained_network
from nac_openood.evaluation.monitor import CoverageMonitor, Measured
from nac_openood.files import PathLike


class CoverageCallback(Callback):
    """Records coverage every n steps, keeps the best checkpoint by it, and stops early.

    Coverage is logged as `nac_me`.

    Examples:
        >>> callback = CoverageCallback(train_loader, every=300, path="best.ckpt", patience=5)
        >>> Trainer(callbacks=[callback]).fit(module, train_loader)
        >>> callback.monitor.best

    Args:
        loader: labeled batches of training data without augmentation.
        path: file for Lightning's checkpoint of the best step; None saves none.
        network: finds the network in the LightningModule, e.g. `lambda module: module.net`; None
            takes the module itself, whose `forward` must return logits.
        options: other settings of `CoverageMonitor`: `every` (in optimizer steps), `layer`,
            `config`, `patience` and `progress`.

    Attributes:
        monitor: the `CoverageMonitor`, with all measurements.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        *,
        path: Optional[PathLike] = None,
        network: FindNetwork = None,
        **options: Any,
    ) -> None:
        self.monitor = CoverageMonitor(loader, **options)
        self.path, self.network = path, network

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *batch: Any, **more: Any
    ) -> None:
        """Measure every `every` steps."""
        found = self.monitor(trainer.global_step, trained_network(pl_module, self.network))
        if found is None:
            return
        pl_module.log("nac_me", found)
        if self.path is not None and self.monitor.best == self.monitor.history[-1]:
            trainer.save_checkpoint(Path(self.path))
        trainer.should_stop |= self.monitor.should_stop

    def state_dict(self) -> dict[str, Any]:
        """The measurements so far, which a resumed training needs."""
        return {"history": [tuple(each) for each in self.monitor.history]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the measurements."""
        self.monitor.history = [Measured(*each) for each in state_dict["history"]]
