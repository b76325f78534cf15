"""Runs the demo and saves its results in benchmarks/demo/, two pictures in docs/demo/.

`report.png` is the report, `confident.png` (for the README) three of its confident mistakes.

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

from jinja2 import Template
from PIL import Image

from nac_openood.benchmark.run.results import RESULTS_FILE, Results
from nac_openood.detector.display import share_text
from nac_openood.report.gallery import story

ROOT = Path(__file__).resolve().parents[1]
DOCS, STORED = ROOT / "docs" / "demo", ROOT / "benchmarks" / "demo"
_QUIET = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --hide-scrollbars "
    "--disable-background-networking --disable-component-update --disable-sync"
)
_REPORT, _CONFIDENT = (1280, 1500), (880, 300)
_MISTAKES = """<!DOCTYPE html><meta charset="utf-8"><style>
body { margin: 0; background: #fff; color: #1b2430; font: 17px/1.4 Arial, sans-serif; }
main { display: grid; grid-template-columns: 268px repeat(3, 1fr); gap: 20px; padding: 20px 24px; }
h1 { margin: 0 0 10px; font-size: 17px; height: 24px; white-space: nowrap; }
img { display: block; width: 100%; aspect-ratio: 1; image-rendering: pixelated; }
.known { display: grid; grid-template-columns: repeat(4, 1fr); gap: 4px; }
img { border-radius: 8px; } .known img { border-radius: 4px; }
p { margin: 8px 0 0; } p.alarm { color: #d55e00; margin: 2px 0 0; }
</style><main><div><h1>Trained on digits 0 to {{ last }}</h1>
<div class="known">
{% for picture in story.pictures(story.found.known) %}<img src="{{ picture }}">{% endfor %}
</div><p>{{ accuracy }} of new ones right</p></div>
{% for mistake in story.found.examples %}
<div><h1>{{ "Then shown" if loop.first }}</h1>
<img src="{{ story.pictures([mistake.file]) | first }}">
<p>\u201cA <b>{{ mistake.answer }}</b>\u201d, {{ share(mistake.confidence) }} sure</p>
<p class="alarm"><b>p = {{ "%.2g" | format(mistake.p_value) }}</b>
{{- ": alarm" if mistake.p_value <= story.found.level }}</p></div>
{% endfor %}</main>"""


def mistakes(results: Results) -> str:
    """A page with what the network was trained on, and three confident mistakes."""
    assert results.confident is not None, "the network makes no confident mistakes"
    template = Template(_MISTAKES, autoescape=True)
    accuracy, last = f"{results.runs[0].accuracy:.1f} %", results.confident.n_classes - 1
    return template.render(story=story(results), accuracy=accuracy, last=last, share=share_text)


def picture(page: Path, target: Path, size: tuple[int, int], scale: int = 1) -> None:
    """Save the upper part of a page, as a browser shows it."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("the picture needs Chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory() as profile:
        shot = Path(profile) / "shot.png"
        subprocess.run(
            [browser, *_QUIET.split(), f"--user-data-dir={profile}", f"--screenshot={shot}",
             f"--force-device-scale-factor={scale}", "--window-size={},{}".format(*size),
             page.resolve().as_uri()],
            check=True, capture_output=True,
        )  # fmt: skip
        with Image.open(shot) as image:
            # few colors: the page looks the same at a third of the size
            image.convert("RGB").quantize(256).save(target, optimize=True)


def main() -> None:
    command = [sys.executable, "-m", "nac_openood", "demo", "--backend", "pytorch-ood"]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(command, check=True, cwd=folder)
        out = Path(folder) / "nac_demo"
        for name in (RESULTS_FILE, "results.md"):
            shutil.copy(out / name, STORED / name)
        picture(out / "report.html", DOCS / "report.png", _REPORT)
        page = out / "confident.html"
        page.write_text(mistakes(Results.load(out)), encoding="utf-8")
        picture(page, DOCS / "confident.png", _CONFIDENT, scale=2)


if __name__ == "__main__":
    main()
