"""One file per figure of the theory."""
