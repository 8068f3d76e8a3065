"""What is read of a training step: losses, gradients, Adam's state; on one rank, then over all ranks."""
