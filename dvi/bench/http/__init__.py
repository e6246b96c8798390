"""`dvi bench bench=http`: what streaming clients get from a server, against the engine alone."""
