"""`dvi bench`: side-by-side measurements of one model on one machine, in one process."""
