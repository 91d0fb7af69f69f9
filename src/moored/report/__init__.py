"""Renders a recording and its findings: text, JSON."""
