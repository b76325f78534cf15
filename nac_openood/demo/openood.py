"""Registers the embedded benchmark in OpenOOD, without changing its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

from nac_openood.demo.embedded_files import read_roles
from nac_openood.errors import NACError
from nac_openood.files import PathLike
from nac_openood.sources.imglist import BENCHMARKS

_ROW = BENCHMARKS["embedded"]
_undo: list[Callable[[], None]] = []


def register_embedded(data_root: PathLike) -> Path:
    """Add the benchmark that `write_openood` wrote to `data_root` to OpenOOD's tables.

    Then `Evaluator(net, "embedded", data_root=...)` runs it, without any download. A second call
    replaces the first.

    Returns:
        The data root.

    Raises:
        FileError: the benchmark is not in `data_root`.
        NACError: OpenOOD has its own benchmark of this name, which stays as it is.
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
    """Undo `register_embedded`; does nothing if the benchmark is not registered."""
    while _undo:
        _undo.pop()()


def _enter(table: dict[str, Any], value: Any) -> None:
    if _ROW.name in table:
        unregister_embedded()
        raise NACError(
            f"OpenOOD already has a benchmark '{_ROW.name}' ({table[_ROW.name]}). Remove it from "
            "OpenOOD's tables to register this one."
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
