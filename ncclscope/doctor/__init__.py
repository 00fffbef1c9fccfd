"""Check what this machine and this installation allow."""
