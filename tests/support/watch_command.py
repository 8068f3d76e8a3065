"""The command line, as a subprocess takes it."""

from __future__ import annotations

import sys

SENTINEL = [sys.executable, "-m", "sentinel"]
