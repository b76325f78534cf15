"""Runs the demo and saves its results in benchmarks/demo/, a picture of its report in docs/demo/.

    python scripts/demo_figures.py

Needs pytorch-ood, matplotlib, scikit-image and mlxtend (extra `demo`), and Chromium for the
picture. Then: python scripts/update_readme.py
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from nac_openood.benchmark.run.results import RESULTS_FILE

ROOT = Path(__file__).resolve().parents[1]
DOCS, STORED = ROOT / "docs" / "demo", ROOT / "benchmarks" / "demo"
_QUIET = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --hide-scrollbars "
    "--disable-background-networking --disable-component-update --disable-sync"
)
_WIDTH, _HEIGHT = 1280, 1440


def picture(page: Path, target: Path) -> None:
    """Save the upper part of the report, as a browser shows it."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("the picture needs Chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory() as profile:
        shot = Path(profile) / "shot.png"
        subprocess.run(
            [browser, *_QUIET.split(), f"--user-data-dir={profile}", f"--screenshot={shot}",
             f"--window-size={_WIDTH},{_HEIGHT}", page.resolve().as_uri()],
            check=True, capture_output=True,
        )  # fmt: skip
        with Image.open(shot) as image:
            # few colors: the page looks the same at a third of the size
            image.convert("RGB").quantize(128).save(target, optimize=True)


def main() -> None:
    command = [sys.executable, "-m", "nac_openood", "demo", "--backend", "pytorch-ood"]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(command, check=True, cwd=folder)
        out = Path(folder) / "nac_demo"
        for name in (RESULTS_FILE, "results.md"):
            shutil.copy(out / name, STORED / name)
        picture(out / "report.html", DOCS / "report.png")


if __name__ == "__main__":
    main()
