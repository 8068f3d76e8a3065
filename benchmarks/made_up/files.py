"""A made-up run as each of the formats that it may have been left behind in."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from benchmarks.made_up.runs import Columns
from sentinel.vocabulary.sample import Sample, encode

__all__ = ["LOG_WRITERS", "WRITERS", "write_mlperf_log"]

_BUFFER_BYTES = 1 << 20
_BATCH = 2048
_SEQLEN = 2048


def write_csv(path: Path, run: Iterable[Columns]) -> None:
    """As a spreadsheet or a logger's export has it."""
    tables = map(pa.table, run)
    first = next(tables)
    with pyarrow.csv.CSVWriter(path, first.schema) as writer:
        writer.write_table(first)
        for table in tables:
            writer.write_table(table)


def write_parquet(path: Path, run: Iterable[Columns]) -> None:
    """In groups of a hundred thousand rows."""
    tables = map(pa.table, run)
    first = next(tables)
    with pyarrow.parquet.ParquetWriter(path, first.schema) as writer:
        writer.write_table(first)
        for table in tables:
            writer.write_table(table)


def write_jsonl(path: Path, run: Iterable[Columns]) -> None:
    """As a trainer writes it that logs a dict for each step."""
    with path.open("w", _BUFFER_BYTES) as file:
        for stretch in run:
            names = [*stretch]
            for row in zip(*(values.tolist() for values in stretch.values()), strict=True):
                file.write("{" + ", ".join(f'"{name}": {value!r}' for name, value in zip(names, row, strict=True)))
                file.write("}\n")


def write_journal(path: Path, run: Iterable[Columns]) -> None:
    """As the hook writes it, every key on every line. The first is compared with `encode`, which would take minutes."""
    compared = False
    with path.open("w", _BUFFER_BYTES) as file:
        for stretch in run:
            names = [*stretch]
            for row in zip(*(values.tolist() for values in stretch.values()), strict=True):
                line = _journal_line(dict(zip(names, row, strict=True)))
                compared = compared or _same_as_encode(line, dict(zip(names, row, strict=True)))
                file.write(line + "\n")


def _journal_line(one: dict[str, float]) -> str:
    step = one["step"]
    spread, update, scale = (_or_null(one.get(name)) for name in ("loss_spread", "update_norm", "loss_scale"))
    l1, largest = (_or_null(one.get(name)) for name in ("adam_variance_l1", "adam_variance_max"))
    return (
        f'{{"kind": "sample", "attempt": 1, "global_step": {step}, "time_unix_s": {1.7e9 + 3.0 * step!r}, '
        f'"loss": {one["loss"]!r}, "loss_ratio": 1.0, "loss_ratio_all_lengths": null, "adam_variance_l1": {l1}, '
        f'"adam_variance_max": {largest}, "adam_variance_coverage": null, '
        f'"grad_norm": {one["grad_norm"]!r}, "update_norm": {update}, "momentum_l2": null, "param_norm": null, '
        f'"loss_spread": {spread}, "grad_norm_spread": null, "attention_logit_max": null, '
        f'"output_logit_max": null, "loss_scale": {scale}, '
        f'"lr": {one["lr"]!r}, "seqlen": {_SEQLEN}, "kept_tokens": null, "curriculum_share": null, '
        f'"lr_warmup_steps": 3000, "skipped": false, "step_time_s": 3.0, "tokens_per_s": null, '
        f'"global_batch_samples": {_BATCH}, '
        f'"consumed_samples": {_BATCH * step}, "consumed_tokens": {_BATCH * step * _SEQLEN}, "epoch": null, '
        f'"batch_digest": null}}'
    )


def _or_null(value: float | None) -> str:
    return "null" if value is None else repr(value)


def _same_as_encode(line: str, one: dict[str, float]) -> bool:
    step = int(one["step"])
    readings = {name: value for name, value in one.items() if name not in ("step", "seqlen", "global_batch_samples")}
    sample = Sample(
        attempt=1, global_step=step, time_unix_s=1.7e9 + 3.0 * step, loss_ratio=1.0, seqlen=_SEQLEN,
        lr_warmup_steps=3000, step_time_s=3.0, global_batch_samples=_BATCH, consumed_samples=_BATCH * step,
        consumed_tokens=_BATCH * step * _SEQLEN, **readings,  # type: ignore[arg-type]
    )  # fmt: skip
    if encode(sample) != line:
        raise SystemExit("a journal's lines have changed: the benchmark's have to follow")
    return True


def write_megatron_log(path: Path, run: Iterable[Columns]) -> None:
    """A line for each iteration, as Megatron prints it."""
    with path.open("w", _BUFFER_BYTES) as file:
        for stretch in run:
            rows = (stretch[name].tolist() for name in ("step", "loss", "grad_norm", "lr"))
            for step, loss, grad_norm, lr in zip(*rows, strict=True):
                file.write(
                    f" iteration {step:8d}/{10**8:9d} | consumed samples: {_BATCH * step:12d} | elapsed time per "
                    f"iteration (ms): 3000.0 | learning rate: {lr:.3E} | global batch size: {_BATCH:5d} | "
                    f"lm loss: {loss:.6E} | loss scale: 65536.0 | grad norm: {grad_norm:.3f} | "
                    "number of skipped iterations:   0 | number of nan iterations:   0 |\n"
                )


def write_torchtitan_log(path: Path, run: Iterable[Columns]) -> None:
    """A line for each step, as TorchTitan's rank 0 logs it."""
    with path.open("w", _BUFFER_BYTES) as file:
        for stretch in run:
            rows = (stretch[name].tolist() for name in ("step", "loss", "grad_norm"))
            for step, loss, grad_norm in zip(*rows, strict=True):
                at = datetime.fromtimestamp(1.7e9 + 3.0 * step, UTC).strftime("%Y-%m-%d %H:%M:%S,%f")[:-3]
                file.write(
                    f"[rank0]:[titan] {at} - root - INFO - step: {step:2}  loss: {loss:8.5f}  grad_norm: "
                    f"{grad_norm:7.4f}  memory: 66.91GiB(37.51%)  tps: {7000 + step % 997:,}  tflops: 314.71  mfu: "
                    f"{13 + step % 97 / 100:.2f}%\n"
                )


def write_huggingface_log(path: Path, run: Iterable[Columns]) -> None:
    """A dict for each logged step, as Hugging Face's Trainer prints it."""
    with path.open("w", _BUFFER_BYTES) as file:
        for stretch in run:
            rows = (stretch[name].tolist() for name in ("step", "loss", "grad_norm", "lr"))
            for step, loss, grad_norm, lr in zip(*rows, strict=True):
                values = {"loss": round(loss, 4), "grad_norm": grad_norm, "learning_rate": lr}
                file.write(f"{values | {'epoch': round(step / 5000, 2)}}\n")


def write_mlperf_log(path: Path, size: int) -> None:
    """A log of MLPerf without a loss, of so many bytes: throughputs, and what NCCL says."""
    with path.open("w", _BUFFER_BYTES) as file:
        step = 0
        while file.tell() < size:
            step += 1
            for rank in range(4):
                file.write(f"{rank}: NCCL INFO Channel {step % 32:02d}/32 : {rank}[{rank}] -> 7[7] via P2P/CUMEM\n")
            for key in ("tracked_stats", "block_start", "eval_accuracy", "block_stop") * 2:
                value = f'{{"throughput": {1000 + step % 97}.25}}' if key == "tracked_stats" else "0.5"
                file.write(
                    f':::MLLOG {{"namespace": "", "time_ms": {1775725571002 + step * 100}, "event_type": '
                    f'"POINT_IN_TIME", "key": "{key}", "value": {value}, "metadata": {{"step": {step}}}}}\n'
                )


LOG_WRITERS = {
    "megatron_log": ("run.log", write_megatron_log),
    "torchtitan_log": ("run.log", write_torchtitan_log),
    "huggingface_log": ("run.log", write_huggingface_log),
}
WRITERS: dict[str, tuple[str, Callable[[Path, Iterable[Columns]], None]]] = {
    "csv": ("run.csv", write_csv),
    "parquet": ("run.parquet", write_parquet),
    "jsonl": ("run.jsonl", write_jsonl),
    "journal": ("0001.jsonl", write_journal),
    **LOG_WRITERS,
}
"""Format to the name of its file, and what writes it."""
