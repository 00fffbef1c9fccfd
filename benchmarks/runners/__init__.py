"""What a record and a diagnosis cost on this machine: ``python -m benchmarks.runners``.

Nothing here is a test. Times on a shared machine say little by themselves, so what is to be
compared is measured in turns, in one run, and given as the least and the median of many rounds.
"""
