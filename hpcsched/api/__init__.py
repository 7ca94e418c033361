"""Using hpcsched from Python: in `salloc` with ipython, in a notebook, from a script."""
