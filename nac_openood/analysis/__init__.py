"""The paper's analyses: a table with one row for each kind, and a function that runs them.

Nothing here imports torch, so the command line can list the kinds quickly. To add a kind, write a
function `(AnalysisData, Options) -> Finding` with its name and add a row.
"""

from __future__ import annotations

from dataclasses import replace
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Iterator, Mapping, NamedTuple, Sequence, Union

from nac_openood.errors import FileError, NACError

if TYPE_CHECKING:
    from nac_openood.analysis.data import AnalysisData, Options
    from nac_openood.analysis.finding import Finding

#: The name that stands for all kinds that need only readings.
ALL = "all"
#: The rule that has its own studies of some kinds.
PLUS = "nac_plus"


class Kind(NamedTuple):
    """A kind of analysis.

    Args:
        name: what users type.
        help: what it shows, for the help text.
        module: the module of this package with the function of that name.
        in_all: whether "all" includes it: it needs no other networks and measures no times.
        plus: whether NAC+ can be studied, too; the others are about settings that it does not have.
    """

    name: str
    help: str
    module: str
    in_all: bool = True
    plus: bool = False


#: Every kind by name, in the order of the page.
KINDS: Mapping[str, Kind] = {kind.name: kind for kind in (
    Kind("states", "output, gradient or both: what the neuron state is made of", "states"),
    Kind("layers", "which layers to combine, for every subset of them", "ablations", plus=True),
    Kind("params", "alpha, r and M, one at a time around the settings in use", "ablations"),
    Kind("samples", "how many training samples NAC needs", "ablations", plus=True),
    Kind("near", "near-OOD data: NAC and the baselines that work on features", "methods"),
    Kind("weighted", "searched weights of the layers against equal weights", "ablations"),
    Kind("calibration", "calibration errors, where OOD samples count as wrong", "calibration",
         plus=True),
    Kind("agreement", "which samples NAC and other methods disagree on", "methods"),
    Kind("cost", "time and memory, compared with other methods", "cost", in_all=False, plus=True),
    Kind("schemes", "NAC on networks that were trained by other schemes", "schemes", in_all=False),
)}  # fmt: skip


def chosen_kinds(names: Sequence[str], rule: str = "nac") -> list[Kind]:
    """The rows of these names, without duplicates, in the order of the table.

    For NAC+, "all" leaves out the studies that are about NAC only.

    Raises:
        NACError: for an unknown name, or one that the rule does not have, listing the others.
    """
    unknown = [name for name in names if name not in (*KINDS, ALL)]
    if unknown or not names:
        wrong = f"unknown kind of analysis {unknown}" if unknown else "no kind of analysis"
        raise NACError(f"{wrong}; expected some of {', '.join(KINDS)}, or '{ALL}'.")
    refused = [name for name in names if rule == PLUS and name in KINDS and not KINDS[name].plus]
    if refused:
        raise NACError(
            f"{', '.join(refused)}: not a study of NAC+. For `rule={PLUS}` there are "
            f"{', '.join(k.name for k in KINDS.values() if k.plus)}."
        )
    in_all = {k.name for k in KINDS.values() if k.in_all and (rule != PLUS or k.plus)}
    return [k for k in KINDS.values() if k.name in names or (ALL in names and k.name in in_all)]


def analyze(
    data: AnalysisData, kinds: Sequence[str], options: Options
) -> Iterator[tuple[str, Union[Finding, NACError]]]:
    """Run analyses one after the other; one that fails does not stop the others.

    Args:
        data: from `nac_openood.analysis.data.prepare_analysis`.
        kinds: names in `KINDS`, or "all".
        options: for all of them.

    Yields:
        The name of each kind, and its finding or the error that prevented it.
    """
    if options.against not in (None, "paper"):
        raise NACError(f"`against` must be 'paper' or None, got {options.against!r}.")
    for kind in chosen_kinds(kinds, data.config.rule):
        options.say(f"analysis: {kind.name}")
        try:
            study = resolve_name(f"{__name__}.{kind.module}:{kind.name}")
            yield kind.name, replace(study(data, options), about=data.about())
        except FileError:  # a full disk: no other analysis would succeed
            raise
        except NACError as error:
            yield kind.name, error
