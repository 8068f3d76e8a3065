"""The curvature that Adam's update meets, against what the learning rate can bear: benchmarks/sharpness.py."""
