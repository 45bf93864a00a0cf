"""The statements of the theory: functions from the facts of a network to the two sides of a formula."""
