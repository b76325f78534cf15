"""The notebook runs from top to bottom, and is stored without outputs."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "notebooks" / "quickstart.ipynb"
# in a process of its own: what Jupyter's libraries warn of is not ours to mend
RUN = """
import sys
import nbclient, nbformat
book = nbformat.read(sys.argv[1], as_version=4)
names = "[float(accuracy), aurocs, verdicts.out().tolist()]"
book.cells.append(nbformat.v4.new_code_cell(f"import json; print(json.dumps({names}))"))
patient = {"timeout": None, "startup_timeout": 600}
nbclient.NotebookClient(book, **patient, kernel_name="python3").execute()
nbformat.write(book, sys.argv[2])
"""


def test_no_outputs_are_stored():
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        assert not cell.get("outputs") and not cell.get("execution_count")


@pytest.fixture
def executed(embedded_cache, tmp_path):
    for module in ("nbclient", "nbformat", "ipykernel"):
        if not importlib.util.find_spec(module):
            pytest.skip(f"{module} is not installed: pip install 'nac-openood[test]'")
    out = tmp_path / "executed.ipynb"
    environment = {
        **os.environ,
        "NAC_CACHE": str(embedded_cache),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        **{name: str(tmp_path / name) for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR")},
    }
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(NOTEBOOK), str(out)],
        capture_output=True, text=True, env=environment, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(out.read_text(encoding="utf-8"))["cells"]


def test_it_runs_and_shows_what_it_says(executed):
    outputs = [output for cell in executed for output in cell.get("outputs", [])]
    assert [o["text"] for o in outputs if o.get("name") == "stderr"] == []
    shown = [output.get("data", {}) for output in outputs]
    assert sum("image/png" in data for data in shown) == 2
    pages = [data["text/html"] for data in shown if "text/html" in data]
    assert ["".join(page).count("<img") for page in pages] == [4, 4]
    accuracy, aurocs, out = json.loads("".join(executed[-1]["outputs"][0]["text"]))
    assert accuracy >= 0.97
    assert all(aurocs[name][0] > 0.95 for name in ("photos", "portrait", "terrain"))
    assert not out[0] and all(out[2:])
