"""Many small GPTs trained in one process, a batched product for all of them: seeds and settings side by side."""
