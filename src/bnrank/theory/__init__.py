"""What should hold: ranks, representation costs, and statements that return verdicts."""
