"""Names of a language model's cache entries, a flat table of arrays.

| entry | array |
|---|---|
| `layers.I.keys`, `layers.I.values` | of block I's tokens, (B, K, S, D): a slot for each token |
| `layers.I.indexer` | keys by which sparse attention chooses tokens, (B, 1, S, D) |
| `layers.I.conv.J`, `layers.I.recurrent.J` | J-th states of convolutions, of recurrences |

A block with a window of attention has slots for its last tokens alone.
"""

SLOTTED = ("keys", "values")
INDEXER = "indexer"


def has_slots(name: str) -> bool:
    """Whether an entry has slots for tokens, in axis 2 (after rows and heads)."""
    return name.rpartition(".")[2] in (*SLOTTED, INDEXER)
