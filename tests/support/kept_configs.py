"""The configuration of a run whose readings a watch keeps."""

from __future__ import annotations

from pathlib import Path

from sentinel.config import Config, load_config


def config_of(folder: Path, more: str = "") -> Config:
    (folder / "a.toml").write_text(
        f'[run]\nname = "a"\ncheckpoints = "c"\nstate_dir = "s"\n[launcher]\nkind = "elsewhere"\n{more}'
    )
    (folder / "s" / "attempts").mkdir(parents=True)
    saved(folder, 1000)
    return load_config(folder / "a.toml")


def saved(folder: Path, step: int) -> None:
    (folder / "c" / f"global_step{step}").mkdir(parents=True)
