"""Tool calls: what a request may ask, how the model writes calls, and how they are read back."""
