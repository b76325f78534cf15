"""Several processes give what one process gives, to the bit, and end together."""

import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from jobs import run_code, run_job, start_job
from own_project import DATA, NETWORK
from processes import run
from safetensors.torch import load_file

#: Numbers of processes; with five, the last ones have nothing to do.
SIZES = {"nac": 5, "nac_plus": 2}
WHOLE = (*DATA, "--test", "birds/test")


@pytest.fixture(scope="module")
def here(own_project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shared") / "place"
    shutil.copytree(own_project, folder)
    return folder


@pytest.fixture(scope="module", params=SIZES)
def fitted(here: Path, request: pytest.FixtureRequest) -> tuple[str, str]:
    """The rule, and what `fit` prints; the file is RULE.nac."""
    done = run(("fit", *fit_options(request.param), "--out", f"{request.param}.nac"), here)
    assert done.returncode == 0, done.stderr
    return request.param, done.stdout


def fit_options(rule: str) -> tuple[object, ...]:
    return (*NETWORK, *WHOLE, "--rule", rule, "--batch-size", 25)


# ---- the same bits


def test_fit_and_score(here: Path, fitted: tuple[str, str]) -> None:
    rule, output = fitted
    size = SIZES[rule]
    first, *others = run_job(size, ("fit", *fit_options(rule), "--out", f"{rule}_{size}.nac"), here)
    assert first.returncode == 0, first.stderr
    assert first.stdout == output.replace(f"{rule}.nac", f"{rule}_{size}.nac")
    assert {(done.returncode, done.stdout, done.stderr) for done in others} == {(0, "", "")}
    assert (here / f"{rule}_{size}.nac").read_bytes() == (here / f"{rule}.nac").read_bytes()

    # 80 images in batches of 25 and one that cannot be read: the last processes have nothing to do
    (here / "bad.png").write_text("no image")
    images = ("birds/test", "bad.png", "--skip-bad", "--batch-size", 25)
    words = ("score", "--detector", f"{rule}.nac", *NETWORK, *images)
    alone = run((*words, "--monitor", f"{rule}.monitor"), here)
    first, *others = run_job(size, (*words, "--monitor", f"{rule}_{size}.monitor"), here)
    assert alone.returncode == first.returncode == 0, first.stderr
    assert first.stdout == alone.stdout and first.stdout.count("\n") == 81
    assert first.stderr == alone.stderr.replace(f"{rule}.monitor", f"{rule}_{size}.monitor")
    assert "left out 1 of 81 files" in first.stderr and "after 80 inputs" in first.stderr
    states = [here / f"{name}.monitor" for name in (rule, f"{rule}_{size}")]
    assert states[0].read_bytes() == states[1].read_bytes()
    states[0].unlink()  # not continued by the next test
    assert {(done.stdout, done.stderr) for done in others} == {("", "")}


def test_a_list_on_stdin_is_read_by_one_process(here: Path, fitted: tuple[str, str]) -> None:
    """Processes that share a stdin would each read a part of it."""
    words = ("score", "--detector", f"{fitted[0]}.nac", *NETWORK, "--batch-size", 2, "-")
    stdin = "import io, os, sys; sys.stdin = io.StringIO(LISTS[int(os.environ['RANK'])])"
    lists = ["".join(f"stripes/{n}.png\n" for n in each) for each in (range(5), range(5, 9))]
    first, second = run_job(2, words, here, stdin.replace("LISTS", repr(lists)))
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    assert [line.split(",")[0] for line in first.stdout.splitlines()[1:]] == lists[0].split()


def test_search_and_compare(here: Path) -> None:
    words = ("search", *NETWORK, *DATA, "--ood-val", "s=stripes", "--batch-size", 25)
    assert run((*words, "--out", "search1"), here).returncode == 0
    for done in run_job(2, (*words, "--out", "search2"), here):
        assert done.returncode == 0, done.stderr
    assert (here / "search1/nac.yml").read_text() == (here / "search2/nac.yml").read_text()

    methods = ("--methods", "msp", "odin", "nac", "nac_plus")
    words = ("compare", *NETWORK, *WHOLE, "--far", "s=stripes", *methods, "--batch-size", 25)
    alone = run((*words, "--out", "compare1"), here)
    assert alone.returncode == 0, alone.stderr
    first, second = run_job(2, (*words, "--out", "compare2"), here)
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    assert second.stdout == ""
    names = sorted(p.relative_to(here / "compare1") for p in (here / "compare1").rglob("*"))
    assert names == sorted(p.relative_to(here / "compare2") for p in (here / "compare2").rglob("*"))
    cells = [name for name in names if name.suffix == ".safetensors"]
    assert len(cells) == 4 * 2 + 4  # scores of four methods on two sets, features of four
    for name in cells:
        mine, reference = load_file(here / "compare1" / name), load_file(here / "compare2" / name)
        assert mine.keys() == reference.keys()
        assert all(bool((mine[key] == reference[key]).all()) for key in mine), name


PASSES = """
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from nac_openood import NACDetector, distributed

class Stream(IterableDataset):
    def __iter__(self):
        for x, y in zip(images, labels):
            yield x, y

class Drawn:
    def __iter__(self):
        return iter(torch.randperm(197).split(30))

    def __len__(self):
        return 7

torch.manual_seed(0)
net = torch.nn.Sequential(
    torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8), torch.nn.ReLU(),
    torch.nn.Linear(8, 3),
).eval()
images, labels = torch.randn(197, 6), torch.arange(197) % 3
data = TensorDataset(images, labels)

def numbers(loader, n_samples, rule):
    torch.manual_seed(1)
    det = NACDetector(net, ["1", "3"], rule=rule).fit(loader, n_samples)
    before = det.rule_.held_out_scores()
    det.calibrate(loader)
    read = det.read_loader(loader)
    found = [*det.rule_.tensors().values(), det.pvalues_.scores, read.label, read["3"].activation]
    found += [] if before is None else [before]
    return found, det.fit_summary_

LOADERS = {
    "in order": lambda: DataLoader(data, 20),
    "shuffled": lambda: DataLoader(data, 20, shuffle=True),
    "own generator": lambda: DataLoader(data, 17, shuffle=True, generator=torch.Generator().manual_seed(5)),
    "fewer batches than processes": lambda: DataLoader(data, 100),
    "batches drawn by code": lambda: DataLoader(data, batch_sampler=Drawn()),
    "a dataset of batches": lambda: DataLoader(
        [(images[:99], labels[:99]), (images[99:], labels[99:])], batch_size=None
    ),
    "a stream": lambda: DataLoader(Stream(), 20),
    "a list": lambda: [(images[:90], labels[:90]), (images[90:], labels[90:])],
}
for name, make in LOADERS.items():
    for n_samples in (None, 171):
        for rule in ("nac", "nac_plus"):
            alone = numbers(make(), n_samples, rule)
            with distributed.joined() as world:
                together = numbers(make(), n_samples, rule)
            where = (name, n_samples, rule)
            assert len(alone[0]) == len(together[0]), where
            assert all(map(torch.equal, alone[0], together[0])), where
            assert alone[1] == together[1], where
print(world.rank, "of", world.size)
"""


def test_every_kind_of_loader() -> None:
    code = f"import warnings; warnings.simplefilter('ignore')\n{PASSES}"
    for rank, done in enumerate(run_code(3, code)):
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"{rank} of 3\n"


# ---- errors


def test_an_error_in_one_process_is_reported_once(here: Path) -> None:
    """The bad image is in the second batch, which the second process reads."""
    folder = here / "birds_with_a_bad_one"
    shutil.copytree(here / "birds" / "test", folder)
    (folder / "cardinal" / "10.png").write_text("no image")
    words = ("score", "--detector", "nac_plus.nac", *NETWORK, str(folder), "--batch-size", 25)
    if not (here / "nac_plus.nac").is_file():
        run(("fit", *fit_options("nac_plus"), "--out", "nac_plus.nac"), here)
    first, second = run_job(2, words, here)
    assert first.returncode == second.returncode == 1
    assert "cannot read" in first.stderr and "10.png (" in first.stderr
    assert "Traceback" not in first.stderr and second.stderr == ""
    words = ("fit", *NETWORK, *DATA[:2], "--train", str(folder), "--val", "birds/val")
    first, second = run_job(2, (*words, "--batch-size", 25, "--out", "bad.nac"), here)
    assert first.returncode == second.returncode == 1
    errors = first.stderr + second.stderr
    assert errors.count("cannot be read (") == 1 and "Traceback" not in errors, errors
    assert not (here / "bad.nac").exists()


def test_commands_for_one_process_say_so(here: Path) -> None:
    for done in run_job(2, ("demo",), here):
        assert done.returncode == 1
        assert "nac-openood demo runs in one process: start it without torchrun" in done.stderr


def test_processes_notice_that_they_do_different_things() -> None:
    code = """
    from nac_openood import distributed
    from nac_openood.errors import NACError
    from nac_openood.sources.fitted import judge_images
    with distributed.joined() as world:
        for work in (
            lambda: distributed.all_gather(f"step {world.rank}", None),
            lambda: next(judge_images(None, [f"{world.rank}.png"])),
        ):
            try:
                work()
            except NACError as error:
                print(error)
    """
    for done in run_code(2, code):
        assert "out of step: they are at ['step 0', 'step 1']" in done.stdout, done.stderr
        assert "the processes have different `paths`" in done.stdout, done.stderr


def test_a_killed_process_ends_the_others(here: Path) -> None:
    slow = """
    import time
    from pathlib import Path
    from nac_openood.network import probe
    from nac_openood.detector import readings as reader
    def read(*arguments, **options):
        Path("begun_" + os.environ["RANK"]).touch()
        time.sleep(0.3)
        return probe.read(*arguments, **options)
    reader.read = read
    """
    words = ("fit", *fit_options("nac_plus"), "--batch-size", 5, "--out", "killed.nac")
    commands = start_job(3, words, here, slow)
    while len(list(here.glob("begun_*"))) < 3 and all(c.poll() is None for c in commands):
        time.sleep(0.01)
    os.kill(commands[0].pid, signal.SIGKILL)
    began = time.monotonic()
    done = [command.wait() for command in commands]
    assert time.monotonic() - began < 300, "torch itself would wait for half an hour"
    assert [d.returncode for d in done].count(1) == 2, done
    message = "".join(d.stderr for d in done)
    assert "another process of this job" in message and "Traceback" not in message, message
    assert not list(here.glob("*killed*")), "nothing is left half-written"


def test_a_job_that_trains_may_fit_in_one_process() -> None:
    """Without `joined`, a process group of the user's changes nothing."""
    code = """
    import torch, torch.distributed as dist
    from nac_openood import NACDetector
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        net = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2)).eval()
        print(NACDetector(net, ["1"]).fit([torch.randn(9, 4)]).fit_summary_.n_samples)
    dist.barrier()
    dist.destroy_process_group()
    """
    first, second = run_code(2, code)
    assert (first.stdout, second.stdout) == ("9\n", ""), first.stderr + second.stderr
