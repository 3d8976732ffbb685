"""Planning, data and assembly: everything that needs no Ray."""
