"""Archives of PyTorch: damage is noticed, and nothing in them runs."""

import contextlib
import io
import os
import zipfile

import pytest
import torch
from small_programs import small, write_programs

from nac_openood.errors import NACError
from nac_openood.sources.checkpoints import load_checkpoint
from nac_openood.sources.networks import network_of

X = torch.zeros(2, 3, 28, 28)
pytestmark = pytest.mark.filterwarnings("ignore")


class Planted:
    """Makes a folder when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def rewritten(path, changed, content):
    """Replace the parts whose names contain `changed`, or add one of that name."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    root = next(iter(parts)).split("/")[0]
    names = [name for name in parts if changed in name] or [f"{root}/{changed}"]
    with zipfile.ZipFile(path, "w") as archive:
        for name, part in {**parts, **dict.fromkeys(names, content)}.items():
            archive.writestr(name, part)


@pytest.fixture
def program(tmp_path):
    write_programs(tmp_path, X)
    return tmp_path / "net.pt2"


def test_a_program_cannot_run_code_while_it_is_loaded(program, tmp_path):
    torch.testing.assert_close(network_of(str(program), 3)(X), small()(X))
    pickled = io.BytesIO()
    torch.save(Planted(tmp_path / "ran"), pickled)
    rewritten(program, "inputs", pickled.getvalue())
    with contextlib.suppress(Exception):
        torch.export.load(program)
    assert (tmp_path / "ran").is_dir(), "PyTorch alone runs it"
    (tmp_path / "ran").rmdir()
    with pytest.raises(NACError, match="holds more than tensors and is not loaded") as message:
        network_of(str(program), 3)
    assert "weights_only" not in str(message.value)
    assert not (tmp_path / "ran").exists()
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ


@pytest.mark.parametrize("name", ["aotinductor/model/x.so", "constants/opaque_obj_0"])
def test_programs_with_code_in_them_are_refused(program, name):
    rewritten(program, f"data/{name}", b"x")
    with pytest.raises(NACError, match=f"not loaded, because it could run code .*{name}"):
        network_of(str(program), 3)


@pytest.mark.parametrize("name", ["net.pt", "net.pt2", "traced.pt"])
def test_a_flipped_bit_in_the_weights_is_noticed(program, tmp_path, name):
    net, path = small(), tmp_path / name
    torch.save(net.state_dict(), tmp_path / "net.pt")
    content = bytearray(path.read_bytes())
    content[content.index(net.head.weight.detach().numpy().tobytes()) + 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(NACError, match="is damaged: '.*' does not match its checksum"):
        load_checkpoint(small(), path) if name == "net.pt" else network_of(str(path), 3)
