"""Methods x checkpoints x data sets: run, keep and tabulate them."""
