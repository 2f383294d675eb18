"""The operators that jaxsr takes from torchax: all whose lowering is torchax's."""

_NAMES = """
special_bessel_j0.default special_bessel_j1.default
special_bessel_y0.default special_bessel_y1.default
special_hermite_polynomial_h.default special_hermite_polynomial_h.n_scalar
special_hermite_polynomial_h.x_scalar special_hermite_polynomial_he.default
special_hermite_polynomial_he.n_scalar special_hermite_polynomial_he.x_scalar
special_laguerre_polynomial_l.default special_laguerre_polynomial_l.n_scalar
special_laguerre_polynomial_l.x_scalar special_modified_bessel_i0.default
special_modified_bessel_i1.default special_modified_bessel_k0.default
special_modified_bessel_k1.default
"""
OPERATORS = frozenset(f"aten.{name}" for name in _NAMES.split())
"""As torch writes them, such as `aten.add.Tensor`; a release of torch may lack some."""
