"""docs/own_network.md: its code, its YAML and its commands are ones that work."""

import re
import shlex
import shutil
from pathlib import Path

from nac_openood.cli import main
from nac_openood.sources.networks import network_of
from nac_openood.sources.sets import own_sets
from nac_openood.sources.transforms import ImageSettings

PAGE = (Path(__file__).parents[1] / "docs" / "own_network.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def commands():
    text = "".join(blocks("bash")).replace("\\\n", " ")
    for line in text.splitlines():
        command = line.rpartition("| ")[2].partition(" > ")[0]
        yield shlex.split(command)[1:]


def test_the_first_commands_run_on_the_networks_and_data_of_the_page(
    own_project, tmp_path, monkeypatch, capsys
):
    shutil.copytree(own_project, tmp_path / "place")
    monkeypatch.chdir(tmp_path / "place")
    Path("photos").mkdir()
    shutil.copy("birds/test/parrot/0.png", "photos/1.png")
    shutil.copy("stripes/0.png", "photos/2.png")
    fit, score, *_ = commands()
    assert main(fit) == 0
    shown = capsys.readouterr().out
    message = next(block for block in blocks("text") if "network  " in block)
    assert [line.split()[0] for line in message.splitlines()] == [
        line.split()[0] for line in shown.splitlines() if not line.startswith("- ")
    ]
    assert main(score) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.rpartition(",")[2] for line in lines] == ["decision", "in", "out"]
    code = next(block for block in blocks("python") if "load_fitted" in block)
    exec(compile(code, "docs/own_network.md", "exec"), {})
    assert capsys.readouterr().out.splitlines()[0].startswith("photos/1.png parrot 0.")


def test_yaml_and_code(own_project, tmp_path, monkeypatch):
    monkeypatch.chdir(own_project)
    settings = ImageSettings.from_yaml(blocks("yaml")[0], "docs")
    assert settings.crop == 224 and not settings.gray
    made = dict(re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE, re.S))
    for name, code in made.items():
        (tmp_path / name).write_text(code.replace('"cars"', '"birds/test"', 2).replace(
            '{"birds/test":', '{"cars":'))  # fmt: skip
    assert network_of(f"{tmp_path}/net.py:make", 7)[-1].out_features == 7
    sets = own_sets(f"{tmp_path}/data.py:birds", transform=settings.transform(), needs_test=False)
    assert (sets.n_classes, list(sets.far), len(sets.id_val)) == (4, ["cars"], 120)
