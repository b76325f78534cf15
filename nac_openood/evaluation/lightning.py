"""NAC-ME as a callback of PyTorch Lightning, which must be installed to import this file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Iterable, Optional

from torch import nn

from nac_openood.core.layer_config import IntegralConfig
from nac_openood.evaluation.monitor import CoverageMonitor, Measured
from nac_openood.evaluation.passes import AUTO
from nac_openood.files import PathLike

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError:
    raise ImportError(
        "this callback needs PyTorch Lightning, which is not installed: "
        "pip install 'nac-openood[lightning]'."
    ) from None


class CoverageCallback(Callback):
    """Records coverage every n steps, keeps the best checkpoint by it, and stops early.

    Coverage is logged as `nac_me`.

    Example:
        >>> callback = CoverageCallback(train_loader, every=300, path="best.ckpt", patience=5)
        >>> Trainer(callbacks=[callback]).fit(module, train_loader)
        >>> callback.monitor.best

    Args:
        loader: labeled batches of training data without augmentation.
        every: distance of measurements in optimizer steps.
        layer: as in `coverage_integral`.
        config: as in `coverage_integral`.
        path: where to keep Lightning's checkpoint of the best step; None keeps none.
        patience: after how many measurements without a new best one to stop; None never stops.
        network: finds the network in the LightningModule, e.g. `lambda module: module.net`; None
            takes the module itself, whose `forward` must return logits.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        *,
        every: int = 300,
        layer: str = AUTO,
        config: Optional[IntegralConfig] = None,
        path: Optional[PathLike] = None,
        patience: Optional[int] = None,
        network: Optional[Callable[[Any], nn.Module]] = None,
    ) -> None:
        self.monitor = CoverageMonitor(
            loader, every=every, layer=layer, config=config, patience=patience
        )
        self.path, self.network = path, network

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *batch: Any, **more: Any
    ) -> None:
        """Measure if it is time."""
        net = pl_module if self.network is None else self.network(pl_module)
        found = self.monitor(trainer.global_step, net)
        if found is None:
            return
        pl_module.log("nac_me", found)
        if self.path is not None and self.monitor.best == self.monitor.history[-1]:
            trainer.save_checkpoint(
                Path(self.path)
            )  # which writes whole files, on the right process
        if self.monitor.should_stop:
            trainer.should_stop = True

    def state_dict(self) -> dict[str, Any]:
        """What a resumed training needs: the measurements so far."""
        return {"history": [tuple(each) for each in self.monitor.history]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue after those measurements."""
        self.monitor.history = [Measured(*each) for each in state_dict["history"]]
