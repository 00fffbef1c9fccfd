"""What this machine and this installation allow."""
