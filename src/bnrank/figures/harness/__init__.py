"""Common parts of all figures: claims, settings, storage, the page of all figures."""
