"""What is measured: numbers only, no claims."""
