"""`dvi demo`: a real model served over HTTP to a drifting stream, every answer checked."""
