"""What the tests of TensorBoard's folder write and read, with TensorBoard itself."""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from sentinel.vocabulary.overrides import Anchor

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import numpy as np
    from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.context import RequestContext
    from tensorboard.data import server_ingester
    from tensorboard.summary.writer.record_writer import RecordWriter
    from tensorboard.util import grpc_util
    from torch.utils.tensorboard import SummaryWriter

WHERE = {"incident": "incident-1", "rollback": "incident-1-r1"}
AT = Anchor(global_step=30, consumed_samples=480, consumed_tokens=61440)
TAG = "lm-loss-training/lm loss"

Shown = dict[tuple[str, str], list[int]]
"""(run, tag) -> the steps that are shown of it, each as often as it is shown."""


def write(folder: Path, steps: Iterable[int], suffix: str = "", **more: Any) -> None:
    """One event file with Megatron's three axes."""
    writer = SummaryWriter(str(folder), filename_suffix=suffix, **more)
    for step in steps:
        write_step(writer, step)
    writer.close()


def write_step(writer: SummaryWriter, step: int) -> None:
    """A loss on each axis."""
    writer.add_scalar(TAG, step / 10, step)
    writer.add_scalar(f"{TAG} vs samples", step / 10, step * 16)
    writer.add_scalar(f"{TAG} vs tokens", step / 10, step * 2048)


def write_file(path: Path, events: Iterable[Event]) -> Path:
    """An event file of just these events, with TensorBoard's own framing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        writer = RecordWriter(file)
        for event in events:
            writer.write(event.SerializeToString())
    return path


def scalar(tag: str, step: int, value: float = 0.5) -> Event:
    """One scalar."""
    event = Event(wall_time=1.7e9 + step, step=step)
    event.summary.value.add(tag=tag, simple_value=value)
    return event


def three(step: int) -> list[Event]:
    """A loss on each axis, as events."""
    return [scalar(TAG, step), scalar(f"{TAG} vs samples", step * 16), scalar(f"{TAG} vs tokens", step * 2048)]


def records(folder: Path) -> list[bytes]:
    """What TensorBoard's own reader finds in all event files of a folder, checksums checked; ordered."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return sorted(raw for p in folder.rglob("*tfevents*") for raw in RawEventFileLoader(str(p)).Load())


def axes(steps: Sequence[int]) -> dict[str, list[int]]:
    """What is shown of `write`."""
    return {
        TAG: list(steps),
        f"{TAG} vs samples": [s * 16 for s in steps],
        f"{TAG} vs tokens": [s * 2048 for s in steps],
    }


def inventory(folder: Path) -> dict[str, str]:
    """Each event file's content."""
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.rglob("*tfevents*")}


def read(folder: Path, *, purge: bool = False) -> dict[str, list[int]]:
    """The scalars of one run, as EventAccumulator shows them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        events: Any = EventAccumulator(str(folder), size_guidance={"scalars": 0}, purge_orphaned_data=purge).Reload()
        return {tag: sorted(s.step for s in events.Scalars(tag)) for tag in events.Tags()["scalars"]}


def accumulated(logdir: Path) -> Shown:
    """Everything that EventAccumulator shows, run by run."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shown: Shown = {}
        for folder in {p.parent for p in logdir.rglob("*tfevents*")}:
            events: Any = EventAccumulator(str(folder), size_guidance=dict.fromkeys(_KINDS, 0)).Reload()
            for kind, reader in _KINDS.items():
                for tag in events.Tags()[kind]:
                    steps = sorted(one.step for one in getattr(events, reader)(tag))
                    shown[str(folder.relative_to(logdir)), tag] = steps
        return shown


_KINDS = {"scalars": "Scalars", "histograms": "Histograms", "images": "Images", "tensors": "Tensors"}


def multiplexed(logdir: Path) -> Shown:
    """Everything that TensorBoard's plugins are given by its own loader."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        all_of_them = dict.fromkeys(_PLUGINS, 0)
        multiplexer = plugin_event_multiplexer.EventMultiplexer(tensor_size_guidance=all_of_them)
        multiplexer.AddRunsFromDirectory(str(logdir)).Reload()
        return _provided(data_provider.MultiplexerDataProvider(multiplexer, str(logdir)))


_PLUGINS = ("scalars", "histograms", "images", "text")


def served(logdir: Path, expected: Shown) -> Shown:
    """What the plugins are given by the data server, once that is what is expected, or after two minutes."""
    package = pytest.importorskip("tensorboard_data_server", reason="the data server is not installed")
    if package.server_binary() is None:
        pytest.skip("tensorboard_data_server has no binary for this platform")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ingester = server_ingester.SubprocessServerDataIngester(
            server_ingester.ServerBinary(package.server_binary(), version=package.__version__),
            str(logdir),
            reload_interval=-1,
            channel_creds_type=grpc_util.ChannelCredsType.LOCAL,
            samples_per_plugin=dict.fromkeys(_PLUGINS, 0),
        )
        ingester.start()
        try:
            return _eventually(lambda: _provided(ingester.data_provider), expected)
        finally:
            ingester._stdin_handle.close()  # it ends with that


def _eventually(look: Callable[[], Shown], expected: Shown) -> Shown:
    deadline = time.monotonic() + 120
    while (seen := look()) != expected and time.monotonic() < deadline:
        time.sleep(0.1)
    return seen


def _provided(provider: Any) -> Shown:
    ctx, everything = RequestContext(), {"experiment_id": "", "downsample": 1_000_000}
    shown: Shown = {}
    for plugin in _PLUGINS:
        for read_kind in (provider.read_scalars, provider.read_tensors, provider.read_blob_sequences):
            found = read_kind(ctx, plugin_name=plugin, **everything)
            shown |= {
                (run, tag): sorted(o.step for o in data) for run, tags in found.items() for tag, data in tags.items()
            }
    return shown


def write_everything(folder: Path, steps: range, suffix: str, **more: Any) -> None:
    """One attempt's event file with all that torch's writer can: scalars, histograms, images, text, hparams."""
    writer = SummaryWriter(str(folder), filename_suffix=suffix, **more)
    writer.add_text("arguments", "--lr 6e-5", steps.start)
    for step in steps:
        write_step(writer, step)
        writer.add_scalars("group", {"a": 1.0, "b": 2.0}, step)
        if step % 5 == 0:
            writer.add_histogram("weights", np.arange(50) / step, step)
            writer.add_image("attention", np.full((3, 4, 4), 0.5), step)
            writer.add_text("sample", f"at {step}", step)
    writer.close()
