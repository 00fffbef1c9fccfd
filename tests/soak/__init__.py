"""Steps by the thousand under tracing, with routing that makes ranks diverge.

`python -m tests.soak --steps 100000` runs them.
"""
