"""Names of what a language model keeps between tokens, a flat table of arrays.

| entry | array |
|---|---|
| `layers.I.keys`, `layers.I.values` | of block I's tokens, (B, K, S, D): one slot for each token |
| `layers.I.indexer` | keys by which sparse attention chooses tokens, (B, 1, S, D) |
| `layers.I.conv.J`, `layers.I.recurrent.J` | J-th states of convolutions, of recurrences |
"""

SLOTTED = ("keys", "values")
INDEXER = "indexer"


def has_slots(name: str) -> bool:
    """Whether an entry has a slot for each token, in axis 2 (after rows and heads)."""
    return name.rpartition(".")[2] in (*SLOTTED, INDEXER)
