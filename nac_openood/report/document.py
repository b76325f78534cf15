"""The report as data: what the page and Markdown render."""

from __future__ import annotations

from nac_openood.benchmark.run.results import Results
from nac_openood.report.blocks import Document
from nac_openood.report.order import standings
from nac_openood.report.sections.about import about
from nac_openood.report.sections.gallery import gallery
from nac_openood.report.sections.headline import headline
from nac_openood.report.sections.layers import layers_section
from nac_openood.report.sections.paper import against_paper
from nac_openood.report.sections.pictures import bars, distributions, rocs
from nac_openood.report.sections.ranking import every_dataset, ranking
from nac_openood.report.sections.settings import hyperparameters
from nac_openood.report.sections.times import times


def document(results: Results) -> Document:
    """Everything there is to show; pictures are not drawn yet."""
    order = standings(results)
    sections = [
        ranking(results, order),
        bars(results, order),
        every_dataset(results, order),
        distributions(results, order),
        rocs(results, order),
        times(results, order),
        layers_section(results, order),
        gallery(results),
        hyperparameters(results, order),
        against_paper(results, order),
        about(results),
    ]
    shown = [section for section in sections if section is not None]
    return Document(headline(results, order), shown, results.versions.get("nac_openood", ""))
