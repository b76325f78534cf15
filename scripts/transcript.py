"""Write benchmarks/notes/transcript.md: own network and images, from `fit` to a service.

    python scripts/transcript.py            # run every command and write the page
    python scripts/transcript.py --keep DIR # the same, in a folder that stays

The network, its training and the transform are the files in scripts/transcript; the images are
scikit-learn's digits (0 to 7 are known, 8 and 9 are not) and pieces of its photographs.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import numpy as np
from PIL import Image
from templates import rendered

from nac_openood.demo.embedded import digits, patches, photograph

HERE = Path(__file__).parent
FILES = HERE / "transcript"
PAGE = HERE.parent / "benchmarks" / "notes" / "transcript.md"
NETWORK = "--arch net.py:make --checkpoint net.pt"
DATA = "--train digits/train --val digits/val --test digits/test"
PORT = 8765


def write_images(folder: Path) -> None:
    """Digits 0 to 7 in a folder per class and split, 8 and 9, and pieces of photographs."""
    pixels, labels = digits()
    for split, rows in _splits(len(labels)).items():
        for row in rows:
            known = labels[row] < 8
            place = f"digits/{split}/{labels[row]}" if known else "eights_nines"
            if known or split == "test":
                _save(folder / place / f"{row}.png", pixels[row])
    for name in ("china.jpg", "flower.jpg"):
        image = photograph("sklearn", f"images/{name}")
        for number, piece in enumerate(patches(image)[::10] if image is not None else ()):
            _save(folder / "photos" / f"{Path(name).stem}_{number}.png", piece)
    (folder / "new").mkdir()
    for source in ("digits/test/3", "digits/test/7", "eights_nines", "photos"):
        first = sorted((folder / source).iterdir())[0]
        shutil.copy(first, folder / "new" / f"{Path(source).name}_{first.name}")


def _splits(n: int) -> dict[str, np.ndarray]:
    order = np.random.RandomState(0).permutation(n)
    first, second = n // 2, 3 * n // 4
    return {"train": order[:first], "val": order[first:second], "test": order[second:]}


def _save(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def folded(command: str) -> str:
    """The command in lines of at most 100 characters, broken before options."""
    lines = [""]
    for part in re.split(r" (?=--|-H|')", command):
        if len(lines[-1]) + len(part) > 92:
            lines.append("   ")
        lines[-1] = f"{lines[-1]} {part}" if lines[-1] else part
    return " \\\n".join(lines)


class Terminal:
    """Runs commands in a folder and remembers what they printed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # the commands of this environment, and nothing that depends on the size of a terminal
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = {**os.environ, "PATH": path, "COLUMNS": "100", "NO_COLOR": "1"}

    def __call__(self, command: str) -> str:
        """The command behind a prompt, with what it prints."""
        ran = subprocess.run(
            command, shell=True, cwd=self.folder, env=self.environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        if ran.returncode:
            raise SystemExit(f"{command}\n{ran.stdout}\nended with exit code {ran.returncode}")
        return f"$ {folded(command)}\n{ran.stdout.rstrip()}"

    def serving(self, command: str) -> subprocess.Popen[str]:
        """Start a service and wait until it answers."""
        process = subprocess.Popen(
            command, shell=True, cwd=self.folder, env=self.environment, text=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        for _ in range(300):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{PORT}/ready", timeout=1)
                return process
            except OSError:
                time.sleep(0.2)
        raise SystemExit(f"{command}\ndid not begin to answer")


def run(folder: Path) -> dict[str, str]:
    """What each step printed, by its name on the page."""
    write_images(folder)
    for file in FILES.iterdir():
        if file.is_file():
            shutil.copy(file, folder)
    terminal = Terminal(folder)
    steps = {
        "train": "python train.py",
        "fit": f"nac-openood fit {NETWORK} --transform transform.yml {DATA} --out digits.nac",
        "score": f"nac-openood score --detector digits.nac {NETWORK} new/ 2> /dev/null",
        "compare": f"nac-openood compare {NETWORK} --transform transform.yml {DATA} "
        "--near eights_nines=eights_nines --far photos=photos "
        "--methods msp ebo knn vim nac nac_plus --backend pytorch-ood --out compare",
        "export": f"nac-openood export --detector digits.nac {NETWORK} --out digits.onnx",
        "onnx": "python run_onnx.py new/*",
    }
    said = {name: terminal(command) for name, command in steps.items()}
    serve = f"nac-openood serve --detector digits.nac {NETWORK} --port {PORT}"
    service = terminal.serving(serve)
    try:
        image = sorted((folder / "new").iterdir())[-1].name
        said["curl"] = terminal(
            f"curl -s --data-binary @new/{image} -H 'Content-Type: image/png' "
            f"'http://127.0.0.1:{PORT}/score?path={image}'"
        )
    finally:
        os.killpg(service.pid, 15)
        service.wait(30)
    return {**said, "serve": f"$ {folded(serve)} &"}


def page(said: dict[str, str]) -> str:
    """The page as Markdown."""
    files = {f.name: f.read_text(encoding="utf-8").strip() for f in FILES.iterdir() if f.is_file()}
    return rendered("transcript.md.j2", trim=False, said=said, files=files)


def main() -> None:
    """Run everything in a new folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, metavar="DIR")
    keep = parser.parse_args().keep
    with socket.socket() as probe:
        if not probe.connect_ex(("127.0.0.1", PORT)):
            raise SystemExit(f"port {PORT} is in use")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) if keep is None else keep
        folder.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(page(run(folder)), encoding="utf-8")


if __name__ == "__main__":
    main()
