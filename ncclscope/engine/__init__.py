"""Compare the ranks of a job: what each did, who waits for whom, and which repair releases them."""
