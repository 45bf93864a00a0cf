"""What every figure shares: claims, settings, storage, the page of all figures."""
