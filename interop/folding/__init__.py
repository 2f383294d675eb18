"""Lane folding: columns of narrow images side by side in the lanes of a TPU.

`policy` says what is folded, `rules` how each operator is computed then, `layout` what a folded
image is. `rules.FoldingRewriter` is what a trace calls.
"""
