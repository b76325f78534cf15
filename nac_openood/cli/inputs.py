"""Load the network, the transform, the data and the detector from the options of a command.

networks (--arch):
  resnet50, vit_b_16, ...    torchvision; --checkpoint FILE or torchvision:IMAGENET1K_V1
  resnet18_32x32             OpenOOD's ResNet-18 for CIFAR; --checkpoint FILE
  timm:NAME                  timm; without --checkpoint its published weights
  hf:NAME-OR-FOLDER          Hugging Face, with its weights, class names, and image processor or
                             tokenizer
  net.pt2, script.pt         a program of torch.export or TorchScript, with its weights in it
  file.py:factory, package.module:factory
                             your own code, which is run: the factory is called with the number
                             of classes if it takes it (n_classes), otherwise with nothing
transforms (--transform):
  auto                       the default: what timm, torchvision or Hugging Face have for the
                             network
  transform.yml              settings, all optional: resize: 256, crop: 224,
                             mean: [0.5, 0.5, 0.5], std: [0.2, 0.2, 0.2],
                             interpolation: bilinear, gray: false
  file.py:name               your own code, which is run: a function of an image, or a function
                             or class without arguments that makes one
data (--train, --val, --test, NAME=... of --near and --far):
  FOLDER                     a subfolder of images per class; OOD sets may be in any subfolders
  list.csv                   columns path and label, where paths are relative to the list; or text
                             and label, for a network of texts
  file.py:function           your own code, which is run: returns a dataset of (x, y), or a dict
                             of datasets; gets the transform if it takes an argument
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Callable, Iterator, Optional, Sequence

from nac_openood.cli.output import print_error, say
from nac_openood.distributed import from_main
from nac_openood.errors import NACError, first_line

if TYPE_CHECKING:
    from torch import nn
    from torch.utils.data import DataLoader

    from nac_openood.detector.detector import NACDetector
    from nac_openood.detector.drift import DriftMonitor
    from nac_openood.sources.fitted import Pipeline, Prediction
    from nac_openood.sources.sets import Datasets
    from nac_openood.sources.transforms import Preprocessing

#: The end of the help of commands with --train, and of those with --arch only.
FORMS = "\n" + (__doc__ or "").partition("\n\n")[2]
NETWORK_FORMS = FORMS.partition("data (")[0]
#: Options that name files to read, or code in them.
_READ = (
    "arch", "checkpoint", "transform", "train", "val", "test", "detector", "paths", "shards",
    "monitor",
)  # fmt: skip


def option(name: str) -> str:
    """The option of an argument: `--batch-size` for `batch_size`."""
    return "--" + name.replace("_", "-")


def arguments(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """The options of these names that are set, as arguments of a function."""
    return {n: value for n, value in vars(args).items() if n in names and value is not None}


def loading(args: argparse.Namespace) -> dict[str, Any]:
    """The options for loading samples: `batch_size` and `workers`."""
    return {"batch_size": args.batch_size or 100, "workers": args.workers or 0}


def on_device(net: nn.Module, name: Optional[str]) -> nn.Module:
    """Move a network to the device of that name, by default to a GPU if there is one."""
    import torch

    device = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        if chosen.type == "cuda" and chosen.index is not None:
            torch.cuda.set_device(chosen)  # OpenOOD calls .cuda() without a device
        return net.to(chosen)
    except (RuntimeError, AssertionError) as error:
        raise NACError(
            f"--device: cannot use '{device}' ({first_line(error)}). Try --device cpu."
        ) from error


def network_loader(args: argparse.Namespace, n_classes: int) -> Callable[..., nn.Module]:
    """A function that loads the network from the path of a checkpoint, onto its device."""
    from nac_openood.sources.networks import network_of

    return lambda path: on_device(network_of(args.arch, n_classes, path), args.device)


def checkpoints(args: argparse.Namespace) -> dict[str, Optional[str]]:
    """The paths of --checkpoint by name; None for a network that comes with its weights."""
    from nac_openood.sources.checkpoints import find_checkpoints

    if args.checkpoint is None:
        return {"network": None}
    paths = [args.checkpoint] if isinstance(args.checkpoint, str) else args.checkpoint
    return {each.name: each.path for each in find_checkpoints(paths)}


def check_output(args: argparse.Namespace, name: str) -> None:
    """Check that the file of an option can be written, and that no other option reads it."""
    from nac_openood.files import check_target

    target = os.path.realpath(check_target(getattr(args, name)))
    for value in arguments(args, *_READ).values():
        for text in value if isinstance(value, list) else [value]:
            if target in map(os.path.realpath, (text, text.rpartition(":")[0])):
                raise NACError(f"{option(name)} would overwrite {text}. Name another file.")


def one_checkpoint(args: argparse.Namespace) -> Optional[str]:
    """The path of the one checkpoint, or None for a network that comes with its weights."""
    first, *more = checkpoints(args).values()
    if more:
        raise NACError(f"expected one checkpoint, got {len(more) + 1}: pass e.g. {first}.")
    return first


def transform_of(
    args: argparse.Namespace, paths: Sequence[Optional[str]], benchmark: Any = None
) -> Preprocessing:
    """The transform of the images, which all checkpoints must share."""
    from nac_openood.sources.transforms import Preprocessing, chosen_transform, square_settings

    if args.image_size is not None:
        if args.transform is not None:
            raise NACError("expected --image-size or --transform, got both.")
        return Preprocessing.of(square_settings(args.image_size), "--image-size")
    made = [
        chosen_transform(args.transform, args.arch, path, benchmark=benchmark) for path in paths
    ]
    if len({one.identity for one in made}) > 1:
        raise NACError(
            f"these checkpoints need different transforms of the images: "
            f"{'; '.join(map(str, made))}. Compare them one by one."
        )
    say(f"transform: {made[0]}")
    return made[0]


def detector_of(args: argparse.Namespace, *, images_for: str = "") -> Pipeline:
    """The detector of --detector with its network, on its device, and its transform.

    Args:
        args: the options.
        images_for: what needs a detector of images, for errors; empty if nothing does.
    """
    from nac_openood.sources.fitted import load_fitted
    from nac_openood.sources.transforms import takes_text

    found = load_fitted(
        args.detector,
        arch=args.arch,
        weights=one_checkpoint(args),
        transform=args.transform,
        prepare=lambda net: on_device(net, args.device),
    )
    if images_for and takes_text(found.transform):
        raise NACError(
            f"{images_for} needs a detector of images, and {args.detector} is one of texts, which "
            "only nac-openood score can judge."
        )
    return found


def files_of(args: argparse.Namespace, pipeline: Pipeline) -> list[str]:
    """The files in the options `paths`, in which `-` stands for a list of paths on stdin."""
    from nac_openood.sources.fitted import expand
    from nac_openood.sources.transforms import takes_text

    def paths() -> Iterator[str]:
        for path in args.paths:
            # without a byte order mark
            lines = (line.rstrip("\r\n").removeprefix("\ufeff") for line in sys.stdin or ())
            yield from filter(str.strip, lines) if path == "-" else [path]

    texts = takes_text(pipeline.transform)
    # in one process: several would each read a part of stdin
    return from_main("files", lambda: expand(paths(), texts=texts))


def is_readable(prediction: Prediction, skip_bad: bool) -> bool:
    """Whether a file could be read; if not, say why, in an error unless `skip_bad`."""
    if not prediction.problem:
        return True
    problem = f"cannot read {prediction.path} ({prediction.problem})"
    if not skip_bad:
        raise NACError(f"{problem}. Replace it, or pass --skip-bad to leave out such files.")
    print_error(problem)
    return False


@contextmanager
def monitor_of(detector: NACDetector, path: Optional[str]) -> Iterator[Optional[DriftMonitor]]:
    """The monitor of --monitor, continued from its file and saved at the end; None without it."""
    from nac_openood.files import check_target, locked

    if path is None:
        yield None
        return
    target = check_target(path)
    with locked(target):  # of two commands, one would overwrite what the other has seen
        monitor = detector.monitor()
        yield monitor.load(path) if target.exists() else monitor
        monitor.save(path)


def data_of(
    args: argparse.Namespace, paths: Sequence[Optional[str]], *, needs_test: bool = True
) -> tuple[Datasets, Optional[Preprocessing]]:
    """Load the data of --id-data or --train, and the transform of its samples if there is one.

    Args:
        args: the options.
        paths: paths of the checkpoints, which must have the same transform.
        needs_test: whether there must be ID test data.
    """
    from nac_openood.sources.networks import kind_of
    from nac_openood.sources.sets import benchmark_named, listed_sets, needs_transform, own_sets

    if args.arch is None:
        raise NACError("expected --arch, the network; see --help for its forms.")
    if (args.id_data is None) == (args.train is None):
        raise NACError("expected either --train (your images) or --id-data (OpenOOD's data).")
    used = "--train" if args.id_data is None else "--id-data"
    for name in ("fsood",) if args.id_data is None else ("val", "test"):
        if vars(args).get(name):
            raise NACError(f"{option(name)} cannot be used with {used}.")
    roles = arguments(args, "near", "far", "ood_val")
    if args.id_data is not None:
        benchmark = benchmark_named(args.id_data)
        chosen, folder = transform_of(args, paths, benchmark), args.data_root or "data"
        roles.update(full_spectrum=vars(args).get("fsood", False), needs_test=needs_test)
        return listed_sets(benchmark, folder, chosen.transform, **roles), chosen
    roles.update(arguments(args, "val", "test"))
    made, wanted = None, args.transform is not None or args.image_size is not None
    needed = wanted or needs_transform(args.train, *roles.values())
    with nullcontext() if needed else suppress(NACError):  # the user's code may need none
        made = transform_of(args, paths)
    sets = own_sets(
        args.train,
        **roles,
        transform=None if made is None else made.transform,
        classes=kind_of(args.arch).classes(paths[0]),
        seed=args.seed,
        needs_test=needs_test,
        on_held_out=_warn_of_held_out,
    )
    return sets, made


def _warn_of_held_out(role: str) -> None:
    print_error(
        f"warning: no --{role}, so a fifth of --train is held out in its place. If the network was "
        "trained on it, new images will look more unusual: pass images that are new to it."
    )


def loader(args: argparse.Namespace, role: str, data: Any) -> DataLoader[Any]:
    """A loader of a set, in order, without unreadable images if --skip-bad is set."""
    from torch.utils.data import DataLoader

    from nac_openood.sources.samples import SampleList, Samples, readable_images

    batch_size, workers = loading(args).values()
    if args.skip_bad and isinstance(data, SampleList):
        data, problem = readable_images(data, role, workers=workers)
        if problem:
            say(f"left out of {role}: {problem}")
    samples = Samples(role, data)
    options: Any = {"num_workers": workers, "collate_fn": samples.collate}
    return DataLoader(samples.dataset, batch_size, **options)
