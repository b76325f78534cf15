"""What people write or collect: configs, transforms, lists, folders, images."""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import yaml
from fuzz_case import HEALED, IDENTICAL, REFUSED, SILENT, VALID, Target
from mutations import bytes_mutated, text_mutated, value_mutated
from PIL import Image

from nac_openood.detector.config import read_config
from nac_openood.sources.images import ImageError, rgb_image
from nac_openood.sources.readers import labelled_samples, listed_images, unlabelled_samples
from nac_openood.sources.samples import bad_images
from nac_openood.sources.transforms import read_settings

CONFIGS = Path(__file__).parents[1] / "configs/postprocessors"
TRANSFORM = "resize: 36\ncrop: 32\nmean: [0.5, 0.4, 0.3]\nstd: [0.25, 0.2, 0.3]\ngray: false\n"


class Configs(Target):
    """YAML settings. A change of the document must change the settings, or be refused."""

    name, tried = "config", "YAML of NAC's settings: text, bytes, values, keys"
    weight = 3

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.texts = {path.name: path.read_text() for path in sorted(CONFIGS.glob("*.yml"))}

    def read(self, path: Path) -> Any:
        return read_config(path).to_dict()

    def case(self, rng: Random, place: Path) -> Any:
        text = self.texts[rng.choice(sorted(self.texts))]
        original = yaml.safe_load(text)
        (place / "whole.yml").write_text(text)
        how = rng.randrange(3)
        if how == 0:
            content = bytes_mutated(rng, text.encode())
        elif how == 1:
            content = text_mutated(rng, text).encode()
        else:
            content = yaml.safe_dump(value_mutated(rng, original)).encode()
        (place / "x.yml").write_bytes(content)
        found = self.read(place / "x.yml")
        changed = not _within(yaml.safe_load(content.decode()), original)
        if found == self.read(place / "whole.yml"):
            return (SILENT, content.decode()) if changed else IDENTICAL
        return VALID


def _within(value: Any, whole: Any) -> bool:
    """Whether everything in a YAML value stands in `whole`: what is missing has a default.

    The outermost key of a config may be left out.
    """
    if isinstance(whole, dict) and isinstance(value, dict) and "postprocessor" not in value:
        whole = whole.get("postprocessor", whole)
    if isinstance(value, dict) and isinstance(whole, dict):
        return all(not v or (k in whole and _within(v, whole[k])) for k, v in value.items())
    return value == whole and isinstance(value, bool) == isinstance(whole, bool)


class Transforms(Configs):
    """The YAML of a transform."""

    name, tried = "transform", "YAML of a transform: text, bytes, values, keys"
    weight = 1

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.texts = {"transform.yml": TRANSFORM}

    def read(self, path: Path) -> Any:
        settings = read_settings(path)
        settings.transform()
        return settings


class Lists(Target):
    """OpenOOD's lists. What is accepted must be what the lines say."""

    name, tried = "image list", "text and bytes of OpenOOD's image lists"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.text = "".join(f"cifar10/train/{n:04d}.png {n % 10}\n" for n in range(12))

    def case(self, rng: Random, place: Path) -> Any:
        damaged = text_mutated(rng, self.text).encode()
        content = damaged if rng.random() < 0.5 else bytes_mutated(rng, self.text.encode())
        (place / "list.txt").write_bytes(content)
        found = listed_images(place / "list.txt", place, lambda image: image)
        said = list(zip(found.names, found.labels.tolist()))
        text = content.decode("utf-8-sig")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        expected = [(line.rsplit(" ", 1)[0], int(line.rsplit(" ", 1)[1])) for line in lines]
        if said != expected:
            return SILENT, f"{said} of {lines}"
        return IDENTICAL if content == self.text.encode() else VALID


class Tables(Target):
    """CSV files of paths and labels."""

    name, tried = "CSV", "text and bytes of CSV files with paths and labels, or texts"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.texts = [
            "path,label\n" + "".join(f"a/{n}.png,{'ab'[n % 2]}\n" for n in range(9)),
            "path,label\n" + "".join(f"a/{n}.png,{n % 3}\n" for n in range(9)),
            "text,label\n" + "".join(f'"one, {n}",{n % 3}\n' for n in range(9)),
        ]

    def case(self, rng: Random, place: Path) -> Any:
        text = rng.choice(self.texts)
        damaged = text_mutated(rng, text).encode()
        content = damaged if rng.random() < 0.5 else bytes_mutated(rng, text.encode())
        (place / "list.csv").write_bytes(content)
        found = labelled_samples(place / "list.csv", lambda image: image)
        rows = list(csv.reader(io.StringIO(content.decode("utf-8-sig"), newline="")))
        rows = [row for row in rows if row][1:]
        said = getattr(found, "names", None) or getattr(found, "texts", [])
        if len(found.labels) != len(rows) or len(said) != len(rows):
            return SILENT, f"{len(found.labels)} rows of {rows}"
        return VALID if content != text.encode() else IDENTICAL


class Folders(Target):
    """Folders of images: what is there is read, or named as unreadable."""

    name, tried = "image folder", "names, links, empty and damaged files in folders of images"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        for kind in "abc":
            (folder / "images" / kind).mkdir(parents=True)
            for n in range(3):
                pixels = np.random.default_rng(n).integers(0, 255, (12, 12, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / "images" / kind / f"{n}.png")

    def case(self, rng: Random, place: Path) -> Any:
        root = shutil.copytree(self.folder / "images", place / "images")
        for _ in range(rng.choice((1, 2, 3))):
            self.damage(rng, root)
        there = [
            Path(where, name)
            for where, _, names in os.walk(root)
            for name in names
            if name.lower().endswith((".png", ".jpg"))
        ]
        every = unlabelled_samples(root, lambda image: image)
        if len(every) != len(there):
            return SILENT, f"{len(every)} of {len(there)} images"
        bad = bad_images(every, progress=False)
        labelled = labelled_samples(root, lambda image: image)
        if set(labelled.names) - set(every.names) or len(labelled.labels) != len(labelled):
            return SILENT, "labels of other images"
        return HEALED if bad else VALID

    def damage(self, rng: Random, root: Path) -> None:
        files = sorted(p for p in root.rglob("*") if p.is_file())
        path = rng.choice(files or [root / "none.png"])
        how = rng.randrange(8)
        if how == 0 and path.exists():
            path.write_bytes(bytes_mutated(rng, path.read_bytes()))
        elif how == 1:
            path.unlink(missing_ok=True)
        elif how == 2 and path.exists():
            odd = (b"\xff\xfe.png", b"new\nline.png", b"a b.PNG", b"-rf.png", b".hidden.png")
            (root / "b").mkdir(exist_ok=True)
            path.rename(root / "b" / os.fsdecode(rng.choice(odd)))
        elif how == 3:
            (root / f"link{rng.randrange(99)}.png").symlink_to(rng.choice((root, "/nowhere", path)))
        elif how == 4:
            shutil.rmtree(root / rng.choice("abc"), ignore_errors=True)
        elif how == 5:
            (root / f"empty{rng.randrange(99)}").mkdir(exist_ok=True)
        elif how == 6:
            (root / f"file{rng.randrange(99)}.jpg").write_bytes(b"")
        else:
            (root / "a").mkdir(exist_ok=True)
            (root / "a" / "notes.txt").write_text("no image")


class Images(Target):
    """Image files: opened in RGB, or a reason why not."""

    name, tried = "image", "bytes of PNG, JPEG, GIF, WEBP, BMP, TIFF, ICO, PPM and EPS files"
    weight = 3

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        pixels = np.random.default_rng(0).integers(0, 255, (20, 24, 3), dtype=np.uint8)
        self.whole = {}
        for kind in ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "ICO", "PPM", "EPS", "TGA"):
            out = io.BytesIO()
            Image.fromarray(pixels).save(out, kind)
            self.whole[kind] = out.getvalue()

    def case(self, rng: Random, place: Path) -> Any:
        content = self.whole[rng.choice(sorted(self.whole))]
        (place / "x.png").write_bytes(bytes_mutated(rng, content))
        try:
            found = rgb_image(place / "x.png")
        except ImageError as error:
            return REFUSED if re.search(r"\S", str(error)) else (SILENT, "no reason")
        return VALID if found.mode == "RGB" and min(found.size) > 0 else (SILENT, found.mode)
