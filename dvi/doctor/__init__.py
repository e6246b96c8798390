"""`dvi doctor`: looks at an installation and says which command mends what is wrong."""
