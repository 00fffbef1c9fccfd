"""Random small jobs with planted faults: the independent judge of verdicts."""
