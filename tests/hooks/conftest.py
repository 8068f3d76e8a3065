"""Fixtures of the hooks' tests."""

from __future__ import annotations

import pytest


@pytest.fixture
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resume in place sets SENTINEL_ROLLBACK in its process, the tests', and so of what they start."""
    monkeypatch.setenv("SENTINEL_ROLLBACK", "of-another-life")
