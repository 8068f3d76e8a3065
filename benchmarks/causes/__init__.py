"""Trainings that diverge from a cause that is injected and known."""

import os

os.environ |= {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}  # before torch is imported
