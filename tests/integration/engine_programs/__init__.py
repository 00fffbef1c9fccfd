"""Small jobs of other engines on gloo, each with faults that its command line names."""
