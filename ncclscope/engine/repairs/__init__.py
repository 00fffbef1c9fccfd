"""What a repaired job does: rounds, departures from them, releases; what a verdict rests on."""
