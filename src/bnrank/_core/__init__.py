"""Arguments, files and axes: what every room uses."""
