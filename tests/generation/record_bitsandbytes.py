"""Records four-bit weights as bitsandbytes packs and reads them: `bitsandbytes_four_bits.json`.

    pip install --no-deps bitsandbytes==0.50.2
    python tests/generation/record_bitsandbytes.py

Rows are multiples of 64 weights: with shorter ones its kernel for CPUs reads other blocks than its
kernel for GPUs.
"""

import json
from pathlib import Path

import bitsandbytes  # pyright: ignore[reportMissingImports]
import torch

TARGET = Path(__file__).with_name("bitsandbytes_four_bits.json")


def main() -> None:
    """Writes the file."""
    weight = torch.randn(6, 64, generator=torch.Generator().manual_seed(0))
    cases = []
    for kind in ("nf4", "fp4"):
        for nested in (False, True):
            packed, state = bitsandbytes.functional.quantize_4bit(
                weight, blocksize=64, compress_statistics=nested, quant_type=kind
            )
            parts = {f"weight.{n}": t for n, t in state.as_dict(packed=True).items()}
            tensors = {
                name: [str(tensor.dtype), tensor.tolist()]
                for name, tensor in {"weight": packed, **parts}.items()
            }
            value = bitsandbytes.functional.dequantize_4bit(packed, state)
            cases.append(
                {"kind": kind, "nested": nested, "parts": tensors, "value": value.tolist()}
            )
    content = {"bitsandbytes": bitsandbytes.__version__, "cases": cases}
    TARGET.write_text(json.dumps(content))


if __name__ == "__main__":
    main()
