"""Make the embedded benchmark one that OpenOOD knows: no file in its tree, and undoable."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

from nac_openood.bench.embedded_files import read_roles
from nac_openood.bench.imglist import BENCHMARKS
from nac_openood.core.files import PathLike
from nac_openood.errors import NACError

_ROW = BENCHMARKS["embedded"]
_undo: list[Callable[[], None]] = []


def register_embedded(data_root: PathLike) -> Path:
    """Put the benchmark that `write_openood` wrote to `data_root` into OpenOOD's tables.

    Afterwards `Evaluator(net, "embedded", data_root=...)` runs it, without any download. A second
    call takes the place of the first.

    Returns:
        The data root.

    Raises:
        FileError: `data_root` does not hold it.
        NACError: OpenOOD has something of its own by this name, which stays in place.
    """
    info = _data_info(read_roles(data_root))
    unregister_embedded()
    from openood.evaluation_api import datasets, preprocessor
    from openood.postprocessors.info import num_classes_dict
    from openood.preprocessors.transform import normalization_dict

    normalization = [list(_ROW.mean), list(_ROW.std)]
    sizes = {"pre_size": _ROW.resize, "img_size": _ROW.crop, "normalization": normalization}
    _enter(datasets.DATA_INFO, info)
    _enter(datasets.benchmarks_dict, [])  # what would be downloaded
    _enter(preprocessor.default_preprocessing_dict, sizes)
    _enter(num_classes_dict, _ROW.n_classes)
    _enter(normalization_dict, normalization)
    return Path(data_root)


def unregister_embedded() -> None:
    """Take back what `register_embedded` did; does nothing where nothing was done."""
    while _undo:
        _undo.pop()()


def _enter(table: dict[str, Any], value: Any) -> None:
    if _ROW.name in table:
        unregister_embedded()
        raise NACError(
            f"OpenOOD has a benchmark '{_ROW.name}' of its own, which stays in place "
            f"({table[_ROW.name]}). Take it out of OpenOOD's tables to run this one."
        )
    table[_ROW.name] = value
    _undo.append(lambda: table.pop(_ROW.name, None) and None)


def _data_info(roles: dict[str, list[str]]) -> dict[str, Any]:
    """The benchmark's entry in OpenOOD's `DATA_INFO`."""
    near, far, shifted = (_group(roles.get(role, [])) for role in ("near", "far", "csid"))
    return {
        "num_classes": _ROW.n_classes,
        "id": {part: _place(f"{part}_{_ROW.name}") for part in ("train", "val", "test")},
        "csid": shifted,
        "ood": {"val": _place(f"val_{_ROW.ood_val}"), "near": near, "far": far},
    }


def _group(names: list[str]) -> dict[str, Any]:
    return {"datasets": list(names), **{name: _place(f"test_{name}") for name in names}}


def _place(part: str) -> dict[str, str]:
    lists = f"benchmark_imglist/{_ROW.name}"
    return {"data_dir": f"{_ROW.folder}/", "imglist_path": f"{lists}/{part}.txt"}
