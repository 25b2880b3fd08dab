"""A page to look at: what a run, a plan or a job is, as one HTML file that needs nothing else."""
