"""How good an output is, by the definitions that the literature's figures use."""
