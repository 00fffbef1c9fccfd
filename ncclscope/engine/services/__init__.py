"""What engines, workers and schedulers of a service do outside of collectives."""
