"""Inert data: a user's line, a recording, a finding, a module's source. No JAX, no I/O but load and save."""
