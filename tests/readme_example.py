"""Runs the README's first example, on a ResNet-18 and random images, in any environment.

    python -I tests/readme_example.py

`-I` keeps the source tree out of it, so that the installed package is what runs.
"""

import re
import tempfile
import warnings
from pathlib import Path

import torch
from torchvision.models import resnet18

import nac_openood

README = Path(__file__).parents[1] / "README.md"


def main():
    torch.manual_seed(0)
    loader = [(torch.rand(16, 3, 32, 32), torch.arange(16) % 4) for _ in range(12)]
    code = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)[0]
    names = {"net": resnet18(num_classes=4).eval(), "images": loader[0][0]}
    names.update(train_loader=loader[:6], val_loader=loader[6:])
    warnings.simplefilter("ignore", UserWarning)  # random weights
    with tempfile.TemporaryDirectory() as folder:
        code = code.replace('"nac.safetensors"', repr(str(Path(folder) / "nac.safetensors")))
        exec(compile(code, "README.md", "exec"), names)
    assert names["scores"].shape == names["p"].shape == (16,) and len(names["why"]) == 16
    assert 0 < float(names["p"].min()) <= float(names["p"].max()) <= 1
    print(nac_openood.__file__)


if __name__ == "__main__":
    main()
