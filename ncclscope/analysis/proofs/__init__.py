"""What a verdict rests on: what its repair releases, and what speaks against the nearest rival."""
