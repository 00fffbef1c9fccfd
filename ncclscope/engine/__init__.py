"""What a job does when it is repaired: the model on which verdicts are checked."""
