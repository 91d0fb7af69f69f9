"""Runs a program or a block under the tracer and explains what was seen."""
