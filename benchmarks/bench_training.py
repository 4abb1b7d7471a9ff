"""What a step of training costs to record: ResNet-50 with its gradients and Adam's state, against their mere sums."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from nndiff.runs.recorder import TrainingRecorder
from nndiff.stats.sketches import RawArray, allocate_widths, sketch_tensors
from timing import Row, in_turns

BUDGET = 65_536  # numbers in the sketches of one model
COPIES = 4  # parameters, gradients, two states of Adam
IMAGES = 4  # of 224 by 224 in a real step of training: few, so that its share is not flattered
DUMP_MB = 100.0  # what a dump of the model's weights takes


def list_resnet50_shapes() -> list[tuple[int, ...]]:
    """Return the shapes of the 161 parameters of torchvision's ResNet-50."""
    shapes: list[tuple[int, ...]] = [(64, 3, 7, 7), (64,), (64,)]
    channels = 64
    for blocks, width in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for block in range(blocks):
            shapes += [(width, channels, 1, 1), (width,), (width,)]
            shapes += [(width, width, 3, 3), (width,), (width,)]
            shapes += [(4 * width, width, 1, 1), (4 * width,), (4 * width,)]
            if block == 0:
                shapes += [(4 * width, channels, 1, 1), (4 * width,), (4 * width,)]
            channels = 4 * width
    return [*shapes, (1000, 2048), (1000,)]


def sums(tensors: list[torch.Tensor]) -> Callable[[], object]:
    def run() -> None:
        for tensor in tensors:
            tensor.sum()

    return run


def sketched(tensors: list[torch.Tensor], budget: int) -> Callable[[], object]:
    """Return the kernel as a recorder calls it: the tensors are looked up each time, names and widths are known."""
    per_model = len(tensors) // COPIES
    widths = (
        allocate_widths([tensor.numel() for tensor in tensors[:per_model]], budget) * COPIES
        if budget
        else [0] * len(tensors)
    )
    known = [(tensor.numel(), "float32", tuple(tensor.shape)) for tensor in tensors]

    def run() -> object:
        raws = []
        for tensor, facts in zip(tensors, known, strict=True):
            raws.append(RawArray(tensor.data_ptr(), *facts))
        return sketch_tensors(raws, widths)

    return run


def rows() -> Iterator[Row]:
    torch.manual_seed(0)
    tensors = [torch.randn(shape) for _ in range(COPIES) for shape in list_resnet50_shapes()]
    plain, sketch, stats = in_turns(sums(tensors), sketched(tensors, BUDGET), sketched(tensors, 0), rounds=40)
    yield Row("sketch, statistics and digests of 644 tensors", sketch, "their sums", plain, "<= 1.2x")
    yield Row("statistics and digests alone", stats, "their sums", plain)
    yield from recorder_rows()


def recorder_rows() -> Iterator[Row]:
    """Yield what a whole `rec.step` costs beside a real training of ResNet-50 with Adam."""
    from transformers import ResNetConfig, ResNetForImageClassification

    model = ResNetForImageClassification(ResNetConfig(num_labels=1000))
    optimizer = torch.optim.Adam(model.parameters())
    images, labels = torch.randn(IMAGES, 3, 224, 224), torch.randint(0, 1000, (IMAGES,))

    def train() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images).logits, labels).backward()
        optimizer.step()

    train()
    tensors = [parameter.detach() for parameter in model.parameters()]
    tensors += [parameter.grad for parameter in model.parameters()]
    tensors += [state for parameter in model.parameters() for state in optimizer.state[parameter].values()]
    with tempfile.TemporaryDirectory(prefix="nndiff-bench-") as folder:
        path = Path(folder) / "run"
        with TrainingRecorder(path, model, optimizer) as recorder:

            def record() -> None:
                recorder.step(data=(images, labels))

            plain, ours = in_turns(sums(tensors), record, rounds=20)
            (step,) = in_turns(train, rounds=3)
        size = max(file.stat().st_size for file in path.glob("state-*")) + len(
            (path / "steps.jsonl").read_bytes().splitlines()[-1]
        )
    yield Row("rec.step at sketch, ResNet-50 with Adam", ours, "sums of all its tensors", plain, "<= 1.5x")
    yield Row("the same", ours, f"a step of its training, {IMAGES} images", step)
    yield Row("MB of a recorded step at sketch", size / 1e6, "MB of a dump of the weights", DUMP_MB, ">= 100x")
