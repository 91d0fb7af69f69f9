"""Sees what JAX moves: seams into JAX, and the collector that turns what they see into a recording."""
