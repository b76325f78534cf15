"""The most suspicious images of `nac-openood score`, remembered while the others pass by."""

from __future__ import annotations

import heapq
from pathlib import Path
from typing import TYPE_CHECKING

from nac_openood.cli.output import complain
from nac_openood.files import check_target, write_text
from nac_openood.report.suspects import Suspect, suspects_page
from nac_openood.sources.decoding import png_url, small_png
from nac_openood.sources.images import open_image
from nac_openood.sources.judged import Judged

if TYPE_CHECKING:
    from nac_openood.sources.fitted import Deployed

_MOST, _NEURONS = 24, 5


class Suspicious:
    """Keeps the images with the lowest p-values, and writes a page about them.

    Args:
        path: of the page.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        check_target(self.path)  # before the long part, or its result could not be written
        self.n_images = self.n_out = 0
        self._kept: list[tuple[float, int, Judged]] = []

    def see(self, answer: Judged) -> None:
        """Look at one image."""
        self.n_images += 1
        self.n_out += answer.is_out
        if answer.score == answer.score:  # nothing can be explained about NaN
            # of equal scores, the first are kept
            heapq.heappush(self._kept, (-answer.score, -self.n_images, answer))
            if len(self._kept) > _MOST:
                heapq.heappop(self._kept)

    def write(self, deployed: Deployed, alpha: float) -> None:
        """Read the kept images again, and explain them."""
        found = []
        for _, _, answer in sorted(self._kept, reverse=True):
            picture = open_image(Path(answer.path))
            if isinstance(picture, str):  # it cannot be read any more
                continue
            x = deployed.transform(picture)[None]
            why = deployed.detector.explain(x, top=_NEURONS)[0]
            found.append(Suspect(answer, png_url(small_png(picture)), why))
        arch = deployed.detector.notes_.get("arch", type(deployed.detector.net).__name__)
        page = suspects_page(
            found, arch=arch, n_images=self.n_images, n_out=self.n_out, alpha=alpha
        )
        write_text(self.path, page)
        complain(f"written to {self.path}: the {len(found)} most suspicious images")
