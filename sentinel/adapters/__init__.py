"""Thin doors to the world, one for each neighbour, independent of one another."""
