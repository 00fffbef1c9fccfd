"""Verdicts on screens and in files."""
