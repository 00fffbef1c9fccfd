"""Dumps of torch's Flight Recorder."""
