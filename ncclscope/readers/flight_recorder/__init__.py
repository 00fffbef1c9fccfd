"""Read dumps of torch's Flight Recorder."""
