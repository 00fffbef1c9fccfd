"""Runs in other people's formats: each module writes one."""
