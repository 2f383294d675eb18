"""The operators that jaxsr takes from torchax: all whose lowering is torchax's.

`benchmarks/conformance/torchax_operators.py` counts how much of what is tested runs each.
"""

_NAMES = """
__lshift__.Scalar __lshift__.Tensor __rshift__.Scalar __rshift__.Tensor _assert_scalar.default
_assert_tensor_metadata.default _conj_physical.default _linalg_svd.default _log_softmax.default
_native_batch_norm_legit_no_training.default _to_copy.default _trilinear.default _unique.default
_unique2.default _unsafe_index.Tensor _unsafe_view.default acos.default acosh.default add.Scalar
add.Tensor addmm.dtype any.default any.dim any.dims arange.default arange.start
arange.start_step argmax.default argmin.default asin.default asinh.default atan.default
atanh.default avg_pool2d.default avg_pool3d.default bincount.default bitwise_and.Scalar
bitwise_and.Scalar_Tensor bitwise_and.Tensor bitwise_left_shift.Scalar_Tensor
bitwise_left_shift.Tensor bitwise_left_shift.Tensor_Scalar bitwise_not.default bitwise_or.Scalar
bitwise_or.Scalar_Tensor bitwise_or.Tensor bitwise_right_shift.Scalar_Tensor
bitwise_right_shift.Tensor bitwise_right_shift.Tensor_Scalar bitwise_xor.Scalar
bitwise_xor.Scalar_Tensor bitwise_xor.Tensor bmm.default bmm.dtype bucketize.Scalar
bucketize.Tensor cat.default ceil.default clone.default complex.default constant_pad_nd.default
copy.default cos.default cosh.default diagonal_scatter.default div.Scalar div.Scalar_mode
div.Tensor_mode dot.default empty.memory_format empty_like.default
empty_permuted.default empty_strided.default eq.Scalar eq.Tensor exp.default expm1.default
fill.Scalar fill.Tensor flip.default floor.default floor_divide.Scalar floor_divide.default
frexp.Tensor full.default full_like.default gather.default gcd.default ge.Scalar ge.Tensor
glu.default gt.Scalar gt.Tensor igamma.default igammac.default index.Tensor index_select.default
isinf.default isnan.default lcm.default le.Scalar le.Tensor lift_fresh_copy.default
linalg_ldl_factor_ex.default linalg_lstsq.default linalg_qr.default
linalg_solve_triangular.default log.default log10.default log1p.default log2.default
logaddexp2.default logical_and.default logical_not.default logical_or.default
logical_xor.default lt.Scalar lt.Tensor masked_scatter.default masked_select.default mm.default
mm.dtype mode.default mul.Scalar mul.Tensor native_layer_norm_backward.default ne.Scalar
ne.Tensor neg.default new_empty.default new_empty_strided.default nonzero.default ones.default
prod.default prod.dim_int reflection_pad1d.default repeat.default
roll.default round.decimals round.default scalar_tensor.default scatter.value
select_scatter.default signbit.default silu.default sin.default sinh.default
sparse_sampled_addmm.default sqrt.default stack.default sub.Scalar sub.Tensor take.default
tan.default tanh.default triangular_solve.default tril_indices.default triu.default
triu_indices.default trunc.default unique_consecutive.default unique_dim.default var.correction
var_mean.correction where.self zeros.default
"""
OPERATORS = frozenset(f"aten.{name}" for name in _NAMES.split())
"""As torch writes them, such as `aten.add.Tensor`; a release of torch may lack some."""
