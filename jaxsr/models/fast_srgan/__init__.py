"""Fast-SRGAN: super-resolution and restoration with a generator and a patch discriminator."""
