"""Steps by the thousand under tracing, with routing made to part ranks.

`python -m tests.soak --steps 100000` runs them.
"""
