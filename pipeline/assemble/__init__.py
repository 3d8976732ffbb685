"""From local slices to global jax.Arrays."""
