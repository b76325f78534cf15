"""Reports on drift, of real scores: NAC on the embedded images."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from nac_openood.analysis.data import ID_VAL
from nac_openood.core.metrics import Interval
from nac_openood.core.pvalues import PValues
from nac_openood.detector.drift import Drift, DriftMonitor
from nac_openood.report.drift import drift_report, evidence_figure
from nac_openood.report.figures import svg_file
from nac_openood.report.render import render_markdown, render_page


@pytest.fixture(scope="module")
def scores(even_readings):
    return even_readings.method_scores["NAC"]


def report(scores, name, p_value=0.0002, classes=((), ()), **more):
    p_values = PValues(scores[ID_VAL])(torch.from_numpy(scores[name])).numpy()
    tests = p_value, 0.0001, None, Interval(0.97, 0.95, 0.99)
    found = Drift(*tests, scores[ID_VAL], scores[name], p_values, np.array(classes))
    return drift_report(found, **more)


def test_the_page_shows_distributions_tests_and_samples(even_readings, scores, tmp_path):
    samples = even_readings.run.study.scored["textures"]
    names = []
    for row in range(3):
        path = tmp_path / f"{row}.png"
        samples.picture(row).save(path)
        names.append((str(path), 0.5 - row / 10))
    found = report(
        scores, "textures", classes=([60, 40], [10, 90]), class_names=["<cat>", "dog"],
        samples=[*names, ("a text.txt", 0.01)],
    )  # fmt: skip
    page = render_page(found)
    assert page.count("<svg") == 2 and page.count("<img") == 3
    assert "&lt;cat&gt;" in page and "-50.00" in page and "+50.00" in page
    assert f"Drift: these {len(scores['textures'])} samples differ from" in page
    assert "0.970 (99 % interval 0.950 to 0.990)" in page
    assert "predicted classes (permutation test)" not in page  # None
    text = render_markdown(found)
    listed = re.findall(r"(\w[\w ]*\.\w+) \| (0\.\d+) ", text)
    assert [p for _, p in listed] == ["0.01", "0.3", "0.4", "0.5"] and listed[0][0] == "a text.txt"


def test_histograms_are_of_all_samples(scores):
    both, uniform = (section := report(scores, "test").sections[0]).blocks[0].figures
    assert section.key == "scores"
    for figure in (both, uniform):
        ((_, (panel,)),) = figure.rows
        assert sum(panel.inside) == pytest.approx(1) == pytest.approx(sum(panel.outside))
    assert set(panel.outside) == {0.05}
    # the ID test samples are like the calibration data; textures are not
    ((_, (textures,)),) = report(scores, "textures").sections[0].blocks[0].figures[1].rows
    assert max(panel.inside) < 0.3 < textures.inside[0]


def test_without_drift_and_without_classes(scores):
    scores = {**scores, "test": np.append(scores["test"], np.nan)}
    found = report(scores, "test", p_value=0.4)
    assert found.verdict.startswith("No sign of drift: these")
    assert [s.key for s in found.sections if s.blocks] == ["scores", "tests"]
    assert "overall p-value | 0.4 " in render_markdown(found)
    drawn = re.findall(r"<svg.*?</svg>", render_page(found), re.DOTALL)
    assert len(drawn) == 2 and "nan" not in "".join(drawn)


@pytest.mark.parametrize(
    ("evidence", "alarm", "title"),
    [
        ([0, 1, 3, 2], 27, "Alarm at input 27"),
        ([0, 1, 1], 15, "Alarm at input 15"),  # between two points
        ([0], None, "No alarm"),
        ([], None, "No alarm"),  # before the first input
    ],
)
def test_evidence_over_time(evidence, alarm, title):
    monitor = DriftMonitor(np.arange(9))
    monitor.history = [(10 * n, float(value)) for n, value in enumerate(evidence, start=1)]
    monitor.alarm_at = alarm
    figure = evidence_figure(monitor)
    assert figure.title == title and figure.mark == alarm
    assert figure.series[0].points == (monitor.history or [(0, monitor.log10_evidence)])
    assert {y for _, y in figure.series[1].points} == {2.0}
    assert title == "No alarm" or f"(dotted: a{title[1:]})" in svg_file(figure)
