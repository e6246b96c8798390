"""The command line `dvi`; imports torch and Hydra only in the commands that need them."""
