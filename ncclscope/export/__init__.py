"""Exports of a run: each module writes one format."""
