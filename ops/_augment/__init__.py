"""The steps of policies for `jaxsr.ops.augment`."""
