"""`scripts/table_*.sh`: each runs, with stand-ins for the commands it drives."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from nac_openood.benchmark.methods.table import METHODS
from nac_openood.benchmark.paper.published import tables
from nac_openood.cli import build_parser
from nac_openood.core.layer_config import STATES
from nac_openood.detector.config import read_config

FOLDER = Path(__file__).parents[1] / "scripts"
SCRIPTS = sorted(FOLDER.glob("table_*.sh"))
PARSER, _ = build_parser()

#: Writes its arguments to a file, one a line, an empty line behind each call.
STANDIN = '#!/bin/sh\nprintf "%s\\n" "$@" >> "$CALLS"\necho >> "$CALLS"\n'


def calls(script: Path, folder: Path) -> list[list[str]]:
    """Run the script in `folder`; what `nac-openood` would have been given, call by call."""
    (folder / "bin").mkdir()
    for name in ("nac-openood", "python"):
        (folder / "bin" / name).write_text(STANDIN)
        (folder / "bin" / name).chmod(0o755)
    for id_data in ("cifar10", "cifar100"):
        for run in ("s0", "s1"):
            name = f"{id_data}_resnet18_32x32_base_e100_lr0.1_default"
            (folder / "results" / name / run).mkdir(parents=True)
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "CALLS": str(folder / "calls")}
    subprocess.run(["bash", str(script)], cwd=folder, env=env, check=True)
    blocks = (folder / "calls").read_text().split("\n\n")
    return [block.splitlines() for block in blocks if block]


def test_every_table_has_one_driver() -> None:
    numbers = [int(script.stem.split("_")[1]) for script in SCRIPTS]
    assert sorted(numbers) == [int(name.split()[1]) for name in tables()]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda s: s.stem)
def test_driver_runs_and_its_options_are_known(script: Path, tmp_path: Path) -> None:
    known = ("analyze", "compare", "search", "run", "rank")
    made = [c for c in calls(script, tmp_path) if c[0] in known]
    assert made, "the script calls no command"
    for config in (tmp_path / "results").rglob("*.yml"):
        read_config(config)  # raises on whatever is not known
    for call in made:
        if "--methods" in call:
            named = call[call.index("--methods") + 1 :]
            named = named[: next(i for i, word in enumerate(named) if word.startswith("--"))]
            assert set(named) <= set(METHODS)
        if "--nac-config" in call:
            assert (tmp_path / call[call.index("--nac-config") + 1]).is_file()
    for call in made:
        PARSER.parse_args(call)  # leaves with exit code 2 on an unknown option


def test_layers_are_added_one_by_one_on_all_benchmarks(tmp_path: Path) -> None:
    words = [" ".join(call) for call in calls(FOLDER / "table_4_layers.sh", tmp_path)]
    assert len(words) == 12
    found = [re.search(r"--layers ([\w ]+) --against", w).group(1) for w in words]  # type: ignore
    layers = ["avgpool", "layer3", "layer2", "layer1"]
    assert found[:4] == [" ".join(layers[:depth]) for depth in (1, 2, 3, 4)]
    assert "default/s0 ./results/cifar10_resnet18_32x32" in words[0]  # every checkpoint
    assert "--id-data imagenet" in words[11]


def test_ablations_try_the_rows_of_their_tables(tmp_path: Path) -> None:
    def configs(name: str) -> list[Any]:
        folder = tmp_path / name
        folder.mkdir()
        calls(FOLDER / f"{name}.sh", folder)
        found = (folder / "results" / "_".join(name.split("_")[:2])).glob("*.yml")
        return [(c, c.layers["avgpool"]) for c in map(read_config, found)]

    def rows(name: str) -> list[float]:
        return sorted(float(row[0]) for row in tables()[name].rows)

    assert sorted(a.steepness for _, a in configs("table_5_alpha")) == rows("Table 5")
    assert sorted(a.n_bins for _, a in configs("table_7_bins")) == rows("Table 7")
    r = [a.full_count * 50 / c.n_samples for c, a in configs("table_6_r")]
    assert sorted(r) == rows("Table 6")
    assert {a.state for _, a in configs("table_16_state")} == set(STATES)
