"""OpenOOD's OpenGAN: a discriminator of features, trained by OpenOOD beforehand."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Iterable, Mapping, Optional

import torch
from torch import nn

from nac_openood.benchmark.methods.openood.home import at_home
from nac_openood.benchmark.methods.scorer import Fit, Given, joined_scores
from nac_openood.detector.batches import batches
from nac_openood.detector.outcomes import Scores
from nac_openood.network.fingerprint import fingerprint
from nac_openood.network.inputs import device_of
from nac_openood.sources.weights import load_checkpoint


class OpenGANScorer:
    """Scores features with OpenGAN's discriminator.

    Args:
        file: `best_DNet.ckpt`, as OpenOOD's recorder writes it.
    """

    def __init__(self, file: Path) -> None:
        from nac_openood.plugin.source import openood_title, openood_tree

        self.file, self.implementation = file, openood_title(openood_tree())
        self.settings: Mapping[str, Any] = {
            "discriminator": str(file),
            "changed": file.stat().st_mtime_ns,
        }

    def setup(self, given: Given, chosen: Optional[Mapping[str, Any]] = None) -> Fit:
        """Load the discriminator; see `Scorer`."""
        with at_home(given):
            from openood.networks.opengan import Discriminator
            from openood.postprocessors import OpenGanPostprocessor

            wide = given.net.get_fc()[0].shape[1]  # type: ignore[operator]
            device = device_of(given.net)
            self._net: nn.Module = load_checkpoint(Discriminator(wide), self.file).to(device)
            self._processor = OpenGanPostprocessor(None)
            self._given, self._device = given, device
        return Fit({"discriminator": fingerprint(self._net)["weights"][:16]})

    def score(self, loader: Iterable[Any]) -> Scores:
        """Score a dataset; see `Scorer`."""
        parts = []
        with at_home(self._given), torch.no_grad():
            for batch in batches(loader):
                feature = batch.data.to(self._device)
                # maps of one pixel are features to OpenOOD's postprocessor
                found = self._processor.postprocess({"netD": self._net}, feature[..., None, None])
                prediction = self._given.net(feature).argmax(dim=1).cpu().numpy()
                score, label = found[1].double().numpy(), batch.labels().numpy()
                parts.append(Scores(score, prediction, label))
        return joined_scores(parts)
