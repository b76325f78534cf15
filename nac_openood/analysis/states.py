"""What the neuron state should be made of: output, gradient, or both, and which parts of these."""

from __future__ import annotations

from typing import Mapping, Optional

from nac_openood.analysis.data import AnalysisData
from nac_openood.analysis.finding import Finding
from nac_openood.analysis.options import Options
from nac_openood.analysis.scores import Metrics, TestScores
from nac_openood.analysis.state_figures import coverage_figure, neuron_figure
from nac_openood.analysis.state_forms import STATE_FORMS, settings_by_form
from nac_openood.analysis.state_parts import part_metrics
from nac_openood.analysis.tabulate import (
    FPR_NOTE,
    Beside,
    beside,
    group_entries,
    group_heads,
    metric_bars,
    records_of,
    text_heads,
)
from nac_openood.benchmark.run.metrics import GROUP_NAMES, GROUP_WORDS
from nac_openood.core.layer_config import LayerConfig
from nac_openood.errors import NACError
from nac_openood.tables import BarGroups, Entry, Table

_ALL = "all layers"
#: The three parts of the state together.
_WHOLE = "z*dg*(p-u)"
StateMetrics = Mapping[tuple[str, str], Metrics]
Parts = Mapping[str, tuple[LayerConfig, Metrics]]


def states(data: AnalysisData, options: Options) -> Finding:
    """AUROC and FPR@95 of three forms of the state, and of seven combinations of its parts."""
    settings = settings_by_form(data, options)
    scores = TestScores(data)
    found = {
        (form, where): scores.metrics(chosen)
        for form in STATE_FORMS
        for where, chosen in (
            *((layer, {layer: settings[form][layer]}) for layer in data.layers),
            (_ALL, settings[form]),
        )
    }
    paper = beside(data, options.against, "Table 16", "state")
    notes = [FPR_NOTE, "The settings of each form were chosen on validation data, out of the "
             "paper's space."]  # fmt: skip
    parts: Parts = {}
    try:
        parts = part_metrics(data, options)
    except NACError as error:
        notes.append(f"The parts of the state cannot be told apart here: {error}")
    group = data.main_group
    tables = [_forms_table(data, found, settings)]
    tables += [_parts_table(data, parts, paper)] if parts else []
    of_parts = {(name, data.head_input): line for name, (_, line) in parts.items()}
    return Finding(
        "states", "What the neuron state is made of", _sentence(found, parts, group), tables,
        [
            neuron_figure(data, options, settings, scores),
            coverage_figure(data, options, settings, scores),
            _bars(data, found, group),
        ],
        records_of({**found, **of_parts}, "state", "layers"),
        {"settings": {f: {n: c.to_dict() for n, c in s.items()} for f, s in settings.items()}},
        [*notes, *(paper.notes if parts else [])],
    )  # fmt: skip


def _forms_table(
    data: AnalysisData, found: StateMetrics, settings: Mapping[str, Mapping[str, LayerConfig]]
) -> Table:
    rows: list[list[Entry]] = []
    ours = []
    for layer in (*data.layers, _ALL):
        for form, title in STATE_FORMS.items():
            used = settings[form].get(layer)
            if form == "output*gradient":
                ours.append(len(rows))
            rows.append([layer, title, _told(used), *group_entries(data, found[form, layer])])
    heads = [*text_heads("Layer", "State", "alpha, M, O*"), *group_heads(data)]
    return Table("Output, gradient and their product", heads, rows, ours)


def _told(used: Optional[LayerConfig]) -> str:
    return "" if used is None else f"{used.steepness:g}, {used.n_bins}, {used.full_count}"


def _parts_table(data: AnalysisData, parts: Parts, paper: Beside) -> Table:
    rows: list[list[Entry]] = [
        [name, _told(used), *group_entries(data, line), *paper.entries(name)]
        for name, (used, line) in parts.items()
    ]
    heads = [*text_heads("Parts", "alpha, M, O*"), *group_heads(data), *paper.heads()]
    title = f"Parts of the state at {data.head_input}: z, dg (gradient of the logits), p-u"
    return Table(title, heads, rows, ours=[len(rows) - 1])


def _bars(data: AnalysisData, found: StateMetrics, group: str) -> BarGroups:
    rows = [
        (where, [found[form, where][group]["FPR@95"] for form in STATE_FORMS])
        for where in (*data.layers, _ALL)
    ]
    title = f"{GROUP_NAMES[group]} FPR@95 by state and layer"
    return metric_bars("FPR@95", title, list(STATE_FORMS.values()), rows)


def _sentence(found: StateMetrics, parts: Parts, group: str) -> str:
    values = {form: found[form, _ALL][group]["FPR@95"] for form in STATE_FORMS}
    best = min(values, key=lambda form: values[form])
    listed = ", ".join(f"{values[form]:.2f} % with {title}" for form, title in STATE_FORMS.items())
    text = f"With all layers, {GROUP_WORDS[group]} FPR@95 is {listed}: {STATE_FORMS[best]} is best."
    if not parts:
        return text
    by_part = {name: line[group]["AUROC"] for name, (_, line) in parts.items()}
    top = max(by_part, key=lambda name: by_part[name])
    text += " At the head's input, the combination with the highest AUROC is "
    if top == _WHOLE:
        return f"{text}that of all three parts, {top} ({by_part[top]:.2f} %)."
    return f"{text}{top} ({by_part[top]:.2f} %); all three parts give {by_part[_WHOLE]:.2f} %."
