"""What the README says is what was measured and what exists."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_its_figures_are_the_stored_ones():
    script = ROOT / "scripts" / "update_readme.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_its_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target


def test_its_make_targets_and_commands_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    done = subprocess.run(
        [sys.executable, "-m", "nac_openood", "--help"], capture_output=True, text=True
    )
    for command in set(re.findall(r"nac-openood (\w+)", README)):
        assert f"\n    {command} " in done.stdout, command


def test_its_first_example_runs(small_net, images, labels, tmp_path, monkeypatch):
    code = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[0]
    monkeypatch.chdir(tmp_path)
    loader = [(images, labels)]
    code = code.replace('layers="imagenet"', 'layers=["avgpool"]').replace(
        "n_samples=1000", "n_samples=16"
    )
    names = {"net": small_net, "images": images, "train_loader": loader, "val_loader": loader,
             "test_loader": loader}  # fmt: skip
    exec(compile(code, "README.md", "exec"), names)
    assert names["scores"].shape == (24,)
