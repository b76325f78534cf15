import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    SequentialSampler,
    Subset,
    TensorDataset,
)

from nac_openood import NACError
from nac_openood.detector.batches import (
    Batch,
    as_batch,
    balanced_indices,
    batches,
    dataset_labels,
    fitting_loader,
    take_quota,
)

X, Y = torch.rand(4, 2), torch.tensor([1, 0, 1, 0])


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"image": "a.png"}, r"loader must yield tensors .* got dict of image: str"),
        ("text", "dicts {'data': x, 'label': y}, .* got str"),
        ((X, torch.rand(4)), "one whole-number label for each of 4 samples, got torch.float32"),
        ((X, torch.ones(4, 2, dtype=torch.long)), r"of shape \[4, 2\]"),
        ((X, ["cat"] * 4), "for each of 4 samples, got list of"),
    ],
)
def test_bad_batches(item, message):
    with pytest.raises(NACError, match=message):
        as_batch(item)


class Listed(Dataset):
    """Like OpenOOD's ImglistDataset and torchvision's folders: labels without loading."""

    def __init__(self, **attributes):
        vars(self).update(attributes)

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return {"data": X[index], "label": int(Y[index])}


def test_labels_are_found_without_loading_samples():
    expected = [1, 0, 1, 0]
    for dataset in (
        Listed(imglist=["a b.png 1\n".replace(" b", "_b"), "c.png 0", "d.png 1", "e.png 0"]),
        Listed(targets=expected),
        Listed(labels=np.array(expected)),
        Listed(samples=[("a", 1), ("b", 0), ("c", 1), ("d", 0)]),
        TensorDataset(X, Y),
        ConcatDataset([TensorDataset(X[:1], Y[:1]), TensorDataset(X[1:], Y[1:])]),
        Subset(TensorDataset(X.repeat(2, 1), Y.repeat(2)), [0, 1, 4, 5]),
    ):
        assert dataset_labels(dataset).tolist() == expected
    assert dataset_labels(TensorDataset(X)) is None
    assert dataset_labels(Listed()) is None
    assert dataset_labels(Listed(targets=[{"boxes": 1}] * 4)) is None


def test_balanced_indices_are_drawn_as_the_authors_draw_them():
    labels = [2, 0, 2, 0, 2, 0, 2, 0]
    expected = []
    for indices in ([0, 2, 4, 6], [1, 3, 5, 7]):  # classes in order of appearance
        np.random.RandomState(1).shuffle(indices)
        expected += indices[:2]
    assert balanced_indices(labels, 5).tolist() == expected
    assert balanced_indices(labels, 5, seed=2).tolist() != expected


def test_the_loader_is_only_read_where_needed():
    asked = []

    class Counting(Listed):
        def __getitem__(self, index):
            asked.append(index)
            return super().__getitem__(index)

    loader = DataLoader(Counting(targets=Y.tolist()), batch_size=3, shuffle=True)
    taken = [b["label"].tolist() for b in fitting_loader(loader, 2, seed=1)]
    assert sorted(taken[0]) == [0, 1]
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("sampler", "size"),
    [(BatchSampler(SequentialSampler(range(40)), 5, False), 5), ([[3], [0, 1]], 32)],
)
def test_a_subset_of_a_loader_with_a_batch_sampler_has_batches(sampler, size):
    data = TensorDataset(torch.arange(40.0)[:, None], torch.arange(40) % 2)
    loader = DataLoader(data, batch_sampler=sampler, num_workers=1, timeout=50)
    subset = fitting_loader(loader, 20)
    assert (subset.batch_size, subset.num_workers, subset.timeout) == (size, 1, 50)


def test_unlabelled_data_sets_give_a_random_subset():
    loader = DataLoader(TensorDataset(torch.arange(100.0)[:, None]), batch_size=10)
    (first,) = next(iter(fitting_loader(loader, 10, seed=1)))
    assert first.flatten().tolist() != list(range(10))
    assert len(set(first.flatten().tolist())) == 10


def test_a_quota_is_the_first_of_each_class():
    data = torch.arange(6.0)[:, None]
    first = Batch(data, torch.tensor([0, 0, 0, 1, 0, 1]))
    (taken,) = take_quota(iter([first, None]), 5, 2)  # the second is not asked for
    assert taken.data.flatten().tolist() == [0, 1, 3, 5]


def test_a_quota_without_labels_is_the_first():
    quota = [Batch(torch.rand(3, 1), None, 5, 0), Batch(torch.rand(3, 1), None, 7, 99), None]
    taken = [(each.size, each.number, each.start) for each in take_quota(iter(quota), 4, 2)]
    assert taken == [(3, 0, 0), (1, 1, 3)], "numbered as taken"


def test_errors_of_loading_processes_are_plain():
    from torch._utils import ExceptionWrapper

    try:
        raise NACError("there is no image x.png.")
    except NACError:
        wrapped = ExceptionWrapper(where="in DataLoader worker process 0")

    def failing(error):
        yield torch.zeros(1, 2)
        error()

    with pytest.raises(NACError, match=r"^there is no image x\.png\.$"):
        list(batches(failing(wrapped.reraise)))
