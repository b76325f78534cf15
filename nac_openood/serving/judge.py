"""From the bytes of an image to an answer, without HTTP."""

from __future__ import annotations

import io
from typing import Optional

from PIL import Image
from torch import Tensor

from nac_openood.detector.outcomes import ALPHA, checked_alpha
from nac_openood.errors import NACError
from nac_openood.serving.limits import Limits
from nac_openood.sources.fitted import Deployed
from nac_openood.sources.image_paths import Prediction, judge_batch
from nac_openood.sources.images import COMMON_FORMATS, rgb_image


class Judge:
    """Judges images that somebody sends.

    Args:
        deployed: a fitted and calibrated detector, and the transform of its images.
        alpha: the p-value at or below which an image is out-of-distribution.
    """

    def __init__(self, deployed: Deployed, *, alpha: float = ALPHA) -> None:
        self.deployed, self.alpha = deployed, checked_alpha(alpha)

    def tensor(self, content: bytes, max_pixels: int = Limits.max_pixels) -> Tensor:
        """Decode and transform an image; may be called from several threads.

        Args:
            content: of an image file.
            max_pixels: the largest image that is decoded.

        Raises:
            ImageError: the bytes are no image that is accepted.
        """
        image = rgb_image(io.BytesIO(content), formats=COMMON_FORMATS, max_pixels=max_pixels)
        made = self.deployed.transform(image)
        if not isinstance(made, Tensor):
            raise NACError(
                f"`transform` must turn an image into a tensor, but returned "
                f"{type(made).__name__}. End it with ToTensor()."
            )
        return made

    def answers(self, batch: Tensor) -> list[Prediction]:
        """Judge transformed images `[batch, ...]` in one pass over the network."""
        return judge_batch(self.deployed, batch, [""] * len(batch), alpha=self.alpha)

    def warm_up(self) -> Optional[str]:
        """Judge a gray image, so that the first request need not wait; why it failed, if it did."""
        content = io.BytesIO()
        Image.new("RGB", (64, 64), (128, 128, 128)).save(content, "PNG")
        try:
            self.answers(self.tensor(content.getvalue())[None])
        except Exception as error:  # of somebody's transform or network
            return str(error) or type(error).__name__
        return None
