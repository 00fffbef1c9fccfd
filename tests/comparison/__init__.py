"""What each tool says about the same hangs: ``python -m tests.comparison``.

Every scenario is written twice, as rings and as Flight Recorder dumps; the same dumps go to
ncclscope and to torch's own analyzer. Real gloo programs are played beside them. How good an
answer is follows from what was planted, by the rules of :mod:`tests.comparison.score`.
"""
