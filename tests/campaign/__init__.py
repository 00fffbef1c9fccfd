"""Long campaigns against the recorder and its readers."""
