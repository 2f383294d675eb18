"""Lane folding: columns of narrow images side by side in the lanes of a TPU.

`policy` decides which operators are folded, `rules` how each is then computed; `layout` defines a
folded image. A trace calls `rules.FoldingRewriter`.
"""
