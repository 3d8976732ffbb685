"""The command line, local simulation and cluster entry points."""
